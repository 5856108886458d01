"""The pages of the API reference, and what stands on each."""

import attrs


@attrs.frozen
class Page:
    """One page: its file and title, what it says first, and where its names come from.

    An entry `module` stands for what `__all__` of the top package has from this module, `module:*` for the module's own
    `__all__`, `module:**` for what it imports from its own folders, and `module:name` for one name, whether an
    `__all__` has it or not.
    """

    file: str
    title: str
    lead: str
    entries: tuple[str, ...]


PAGES = (
    Page(
        "decoding",
        "Decoding",
        "Loading a model, decoding with it, and what comes out.",
        (
            *(
                "talon_core.decoding.loading",
                "talon_core:as_generate",
                "talon_core.decoding.decoder",
                "talon_core.request",
            ),
            *("talon_core.decoding.streaming:StreamedGeneration", "talon_core.engine.generation:Generation"),
            *(
                "talon_core.engine.generation:Batch",
                "talon_core.engine.engine",
                "talon_core:Bounds",
                "talon_core.engine.sequence:Sequence",
            ),
            *("talon_core.allocation", "talon_core.engine.allocation"),
            *("talon_core.rounds", "talon_core.sampling:Sampling"),
            *("talon_core.sampling:temperature_sampling", "talon_core.frontend:Frontend"),
            *("talon_core.hf.generate:TalonGenerate", "talon_core.errors", "talon_core.frontend:TextStream"),
            *("talon_core.pictures.notebook:picture_of", "talon_core.pictures.render:render_tree"),
        ),
    ),
    Page(
        "policies",
        "Tree policies",
        "What a policy is, what it sees, and what it answers. [Writing a policy](../writing-a-policy.md) makes one.",
        (
            *(
                "talon_core.policy",
                "talon_core.chains",
                "talon_core.forest",
                "talon_core.forest_drawer",
                "talon_core.forest_grower",
                "talon_core.forest_planner",
            ),
            *("talon_core.forest_learner", "talon_core.source_chooser:SourceChooser"),
            *("talon_core.costs", "talon_core.searching"),
            *("talon_core.costs:MeasuredCosts", "talon_core.tree"),
            *("talon_core.candidates", "talon_core.drawn:Drawn", "talon_core.choices"),
            *("talon_core.engine.drafting:DraftLimits", "talon_core.engine.drafting:draft_tree"),
        ),
    ),
    Page(
        "drafters",
        "Drafters and recipes",
        "What guesses the next tokens, what trains it, and indices of texts that it may retrieve from.",
        (
            *("talon_core.drafter", "talon_core.inquiry", "talon_core.recipe:Recipe"),
            *("talon_core.recipe:TrainingJob", "talon_core.retrieval:*"),
        ),
    ),
    Page(
        "runtime",
        "The kit for networks that draft",
        "What a neural drafter runs on: caches, passes over trees, candidates. "
        "[Writing a drafter](../writing-a-drafter.md) uses it.",
        ("talon_core.runtime:*",),
    ),
    Page(
        "rules",
        "Acceptance rules",
        "What decides how much of a verified tree is kept.",
        ("talon_core.rule", "talon_core.laws", "talon_core.rule:descend"),
    ),
    Page(
        "schedules",
        "Schedules",
        "What is prepared while the target verifies. [Schedules](../schedules.md) tells how it works.",
        ("talon_core.schedule", "talon_strategies.schedules.fanout:Fanout"),
    ),
    Page(
        "targets",
        "Targets and backends",
        "What says how the text really goes on, and how a device computes it.",
        (
            *("talon_core.target", "talon_core.hf.target", "talon_core.table", "talon_core.attention"),
            *("talon_core.attention:DeviceBackend", "talon_core.attention:PackedLayout"),
            "talon_core.attention:TooLargeError",
        ),
    ),
    Page(
        "plugins",
        "Plugins",
        "How plugins are marked, found and looked up. [Hooks](../hooks.md) has an example of each kind.",
        (
            "talon_core.hookspecs",
            "talon_core.plugins.registry:load_registry",
            "talon_core.plugins.registry:Registry",
            *("talon_core.plugins.presets:Preset", "talon_core.plugins.presets:find_preset"),
            "talon_core.plugins.presets:save_preset",
            *("talon_core.peer:Peer", "talon_core.peer:PeerSetting"),
            *("talon_core.peer:PeerEngine", "talon_core.peer:PeerAnswer"),
        ),
    ),
    Page(
        "testing",
        "Testing",
        "Checks of plugins, certificates, and strategies for Hypothesis. "
        "[Testing a plugin](../testing-a-plugin.md) shows how they are used.",
        (
            *("talon_core.testing:*", "talon_core.certify.exact:Given", "talon_core.certify.exact:emitted_law"),
            *("talon_core.certify.exact:ancestral_law", "talon_core.certify.exact:distance"),
            *("talon_core.certificates.store:certificates_folder", "talon_core.testing.tape:TapeRecorder"),
            *("talon_core.testing.tape:TapedBackend", "talon_core.testing.plain_device:PlainDevice"),
        ),
    ),
    Page(
        "measuring",
        "Measuring",
        "What of `talon bench`, `talon trace`, `talon profile` and `talon tune` can be called from Python. "
        "[Benchmarks](../benchmarks.md), [reports](../reports.md), [traces](../traces.md), [profiles](../profiles.md) "
        "and [tuning](../tuning.md) have the commands.",
        (
            *("talon_core.bench.methods:parse_methods", "talon_core.bench.bootstrap:median_with_interval"),
            *("talon_core.bench.rounds:read_rounds", "talon_core.bench.prompts:read_sets"),
            *("talon_core.bench.prompts:PromptSet", "talon_core.bench.prompts:Prompt"),
            *("talon_core.trace.record:TracePlan", "talon_core.trace.record:Recorder"),
            "talon_core.trace.record:Recorded",
            *("talon_core.trace.folder:read_trace", "talon_core.trace.folder:Trace"),
            *("talon_core.trace.columns:TextTrace", "talon_core.trace.columns:Rows"),
            "talon_core.trace.kept_laws:KeptLaws",
            *("talon_core.trace.methods:parse_method", "talon_core.trace.replay:Method"),
            *("talon_core.trace.schedules:cases", "talon_core.trace.schedules:promises"),
            *("talon_core.trace.schedules:Case", "talon_core.trace.schedules:Promise"),
            *("talon_core.trace.schedules:Promises", "talon_core.trace.machines:Machines"),
            *("talon_core.trace.simulate:simulated", "talon_core.trace.simulate:Simulated"),
            *("talon_core.trace.simulate:Unanswered", "talon_core.trace.simulate:check_schedule"),
            *("talon_core.trace.replay:Replay", "talon_core.trace.replay:Replayed", "talon_core.trace.replay:Totals"),
            *("talon_core.trace.run:replayed", "talon_core.trace.run:Answer", "talon_core.trace.run:Tried"),
            *("talon_core.trace.oracle:BestTrees", "talon_core.trace.oracle:best_trees"),
            *("talon_core.trace.oracle:fastest", "talon_core.trace.oracle:fastest_by_the_laws"),
            *("talon_core.trace.oracle:Fewest", "talon_core.trace.oracle:Along"),
            "talon_core.testing.benchmarks:SHIPPED",
            *("talon_core.trace.sweep:Sweep", "talon_core.trace.sweep:Line", "talon_core.trace.sweep:Passes"),
            *("talon_core.trace.sweep:summaries", "talon_core.trace.sweep:Summary"),
            *("talon_core.trace.processes:in_processes", "talon_core.trace.on_ray:on_ray"),
            *("talon_core.profiles.store:find_profile", "talon_core.profiles.store:save_profile"),
            *("talon_core.profiles.profile:Profile", "talon_core.profiles.profile:Table"),
            *("talon_core.profiles.measure:Measuring", "talon_core.profiles.measure:ProfilePlan"),
            *("talon_core.profiles.beside:measured_beside", "talon_core.profiles.beside:BesidePlan"),
            "talon_core.profiles.contention:Contention",
            *("talon_core.tune.space:space_of", "talon_core.tune.space:Space", "talon_core.tune.space:Dimension"),
            *("talon_core.tune.run:tuned", "talon_core.tune.run:TunePlan", "talon_core.tune.run:Tuned"),
            *("talon_core.tune.run:Gain", "talon_core.tune.search:Trial"),
            *("talon_core.bench.results:read_results", "talon_core.bench.results:Results"),
            *("talon_core.report.gather:report_of", "talon_core.report.gather:Besides"),
            "talon_core.report.texts:Texts",
            *("talon_core.report.figures:Report", "talon_core.report.figures:ALL", "talon_core.report.figures:Shown"),
            *("talon_core.report.figures:Estimate", "talon_core.report.figures:DepthShare"),
            *("talon_core.report.figures:RankShares", "talon_core.report.figures:TreeShapes"),
            *("talon_core.report.figures:TimePerToken", "talon_core.report.figures:RoundTime"),
            *("talon_core.report.lanes:Stretch", "talon_core.report.figures:Efficiency"),
            *("talon_core.report.figures:Point", "talon_core.report.figures:Oracle"),
            *("talon_core.report.figures:Budget", "talon_core.report.figures:Walks"),
            *("talon_core.report.figures:Extreme", "talon_core.report.figures:Walk"),
            *("talon_core.report.figures:Step", "talon_core.report.figures:Progress"),
            *(
                "talon_core.report.efficiency:oracle_of",
                "talon_core.report.efficiency:TooLow",
                "talon_core.report.page:page_of",
            ),
            "talon_core.report.plots:pictures_of",
            *("talon_core.report.lanes:timeline_of", "talon_core.report.lanes:Timeline"),
            "talon_core.report.lanes:Turn",
            *("talon_core.report.lane_page:page_of_lanes", "talon_core.report.lane_page:timeline_file"),
        ),
    ),
    Page(
        "parts",
        "The parts that come with TALON",
        "Their options, as arguments from Python. [Policies](../policies.md), [rules](../rules.md), "
        "[drafters](../drafters.md) and [training](../training.md) say when to take which.",
        (*("talon_strategies:*", "talon_drafters:**", "talon_kernels:*", "talon_core.peers:*"),),
    ),
)
