"""The loop: sequences in slots, and a round over those that are ready.

- `engine` lets sequences in and out and runs rounds, `slots` says who is where and what is kept, and `in_session`
  enters and leaves target and drafter; `generation` runs it for one request or for many;
- `bounds` says how much is taken on at a time;
- `stages` is one round, `spans` what took time in it, and `faults` keeps what fails in one sequence from the others;
- `drafting` grows all trees of a round, `growing` one of them, and `plain` is decoding without drafting; `sharing` says
  what each sequence gets of a pass, `inquiries` what a drafter asks beside its tree;
- `acceptors` settles whether the target or the rule accepts; `sequence` is one text, `walking` asks the rule, `warping`
  makes the law of its next token, and `processors` says which processors remember and which look at scores alone;
- `ahead/` prepares drafts while the target verifies;
- `offers` asks the drafter; `checked_candidates`, `checked_drafter` and `checked_policy` look at what plugins answer.
"""
