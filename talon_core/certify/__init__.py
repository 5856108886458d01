"""What stands behind the word "lossless": proof, a certificate that belongs to some code, or a plugin's claim.

`trial` makes certificates: `worlds` are small, the law of the text in them is exact (`exact`, and `composed` of its
rounds), and what is wrong is told as a `counterexample`. `subject` says what a certificate is about, `store` where it
is kept, and `standing` what follows for a policy and a rule. `greedy` holds a real model's output against its own.
"""
