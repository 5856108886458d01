"""What is used where the user names nothing: the only parts of plugins that the core knows by name."""

AUTO = "auto"
"""In the place of a drafter: the best that is ready for the model. In the place of a rule: the policy's default. In the
place of a schedule: what `talon tune` has kept for this machine."""

NONE = "none"
"""In the place of a policy: decode without drafting."""

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DRAFTER = AUTO
DEFAULT_POLICY = "default"
"""The preset that comes with TALON: `talon_core/plugins/shipped/default.json`; docs/tuning.md says how one is found."""
MEASURING_POLICY = "talon-cost"
"""Its trees follow what passes are measured to take: it is the default preset that comes with TALON. It is taken in
the place of a user's own preset of that name, too, for a model on another kind of device than that was found on."""

DEFAULT_RULE = AUTO

DEFAULT_SCHEDULE = AUTO

IN_TURN = "sync"
"""The schedule that drafts and verifies in turn: nothing is looked up for it."""

DEFAULT_PLACE = "thread"
"""Where drafting goes on while the target verifies: in a thread of this process."""

EXACT_RULE = "match"
"""The rule that is exact for any trees: of policies that name no other, and where nothing is drafted."""

CHECK_POLICY = "chain:length=5"
"""With which `talon doctor` looks how often a drafter guesses right."""

PART_OF_TARGET = "draft-model:skip=2"
"""The drafter of the test kit's tiny model: the model itself without one of its layers."""
