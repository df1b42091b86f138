"""table.py: the words that check-words.py searches for, and where they are legal."""
from .word import ALL, CODE, COMMENT, DOCUMENT, IDENTIFIER, NAME, NAMES, OUTPUT, PROSE, STRING, Word, part

# Files in which an old word may stand, for every entry.
HISTORY = [
    ("CHANGELOG.md", None, "names what was renamed"),
    ("docs/upgrading.md", None, "maps old spellings to new ones"),
    ("docs/experiments/", r"^\|", "its tables map old names to new ones"),
    ("src/autotune/renamed.c", None, "the table of old and new names in stored kernel times"),
    ("*checkpoint*", r"\.swap-", "the name of a temporary link on disk"),
    ("src/config/config.def", r"\((?:memory, swap|ranks, meet|ranks, patience)\b|\bswap = ", "INI keys"),
    ("docs/reference/config.md", r"`(?:swap|meet|patience)`", "INI keys"),
    ("*", r"ranks\.meet|meet ?=|recompute and swap", "INI keys"),
    ("cuda/*", r"(?-i:LANES)|LANE_INPUTS|lane_inputs", "lanes of a warp"),
    ("tests/harness/sparse_support.h", r"\blanes?\b", "lanes of a warp"),
    ("*", r"target_clones|GEN_STATS|print_final_stats|site-packages|Copyright laws", "names of other programs and texts of licences"),
    ("*", r"(?-i:\bSTORE\b)", "the memory region of the parameter store"),
    ("*", r"backend->share|\(\*share\)|\.share +=", "cr_backend.share makes memory visible to other ranks"),
    ("src/session/running_stats.c", None, "running statistics of batch normalisation"),
    ("*", r"cr_lifetimes_\w+", "functions of the lifetimes of tensors"),
    ("*", r"row-major|row start|one row\.|across one row|One row of 64|rows? of the (?:image|matrix)|contiguous channels|rows from", "rows of a matrix"),
    ("tests/tools/torch_*", r'"--pictures"', "the old spelling of an option, accepted for one release"),
    ("*alias*", None, "tables of old spellings that are still accepted"),
    ("*old_names*", None, "tables of old spellings that are still accepted"),
]

# Folders by subject, for expressions that hold only there.
SPARSE = ("src/sparsity/*", "src/pruning/*", "src/prune*", "src/device/cpu/*sparse*", "src/cpu/cpu_sparse*", "cuda/sparse/*",
          "cuda/*sparse*", "cuda/rows_*", "cuda/union*", "cuda/block*", "tests/*sparse*", "tests/*prun*", "docs/*sparsity*", "docs/*prun*")
NETWORK = ("src/graph/*", "src/graph.h", "src/ops*", "src/program*", "src/compiler/*", "src/passes*", "src/layers/*",
           "src/device/*", "src/cpu/*", "src/verification/*", "src/verify*", "cuda/*", "tests/checkops/*", "tests/programs/*",
           "tests/*passes*", "tests/*cuda*", "docs/*memory*", "docs/*adding*")
NO_MATRICES = ("src/autotune/*", "src/compiler/autodiff/*", "src/compiler/fusion/*", "src/compiler/rewrite/*",
               "src/compiler/schedule/*", "src/compiler/memory/*", "src/runtime/*", "src/session/*", "src/training/*",
               "src/device/*.h", "src/device/registry.c", "src/device/select*", "src/costs*", "src/session*", "src/exec*",
               "src/passes/*", "src/backend*", "src/verify*", "src/verification/*", "docs/*adding-a-kernel*",
               "cuda/*_kernels.c", "cuda/registry.c", "cuda/device.c", "src/device/cpu/*_kernels.c", "tests/checkops*", "src/graph/graph.h")


# ---- the table ------------------------------------------------------------------------------------------------------

OF_A = r"(?:a|an|the|its|this|that|each|every|any|no|one|another|other|of|same|which|whose|their|all|two|three|own)"

WORDS = [
    Word("row", "kernel", [
        (r"\bcr_rows?_\w+|\bcr_(?:cuda|cpu|dnnl|cudnn|ref)_\w*rows?\b|\bop\w*(?:->|\.)row\b|\bdevice\w*(?:->|\.)rows\b|"
         r"\bstruct cr_kernel\b[^;(){}=\n]*\brows?\b|\bchar \*row\b|\bkernel_rows?\b|\b(?:ref|tuned|timed)_row\b|\brow_(?:takes|name)\b", CODE),
        (r"\bcr_rows?_\w+|kernel rows?\b|\bref\.?\S* rows?\b|\breference rows?\b|\brows? (?:that )?(?:takes?|accepts?|refuses?|under test)\b|"
         r"\brows? of (?:the|a|this|that|each|every) (?:device|kind|backend|gpu|cpu|machine)\b|\brows? for (?:an?|the|its|this|update|pointwise) (?:op|input|update)|"
         r"\b(?:gpu|cpu|device|cudnn|onednn|cuda|backend|library)(?:'s|s')? rows?\b|\brows? (?:and|or) (?:a |its |their )?(?:ways?|tiles?)\b|"
         r"\b(?:fastest|tuned|chosen|best|slower|faster|fused|dense|sparse|generic|plain) rows?\b|\brow(?:'s)? (?:workspace|scratch)\b|\bop(?:'s)? row\b|"
         r"\brows? (?:that|which) (?:does|do|are (?:wrong|slow|fast)|know|skip|wants?)\b|\bdevice with rows\b|\brow (?:and|or) (?:a |its )?layout\b", PROSE),
        (r"\brows?\b", (COMMENT,), NO_MATRICES),
        (r"(?:^|/)rows_\w+\.|_rows\.[ch]$", NAMES),
    ], [(IDENTIFIER, "op->row = 0;"), (COMMENT, "the fastest row of the device"), (NAME, "cuda/rows_bn.c")],
        [("*", r"\b(?:image|matrix|csr|csv|pixel|filter|weight|of the table|of a table|column|table)s?\b", "rows of an image, a matrix or a table"),
         ("tests/*", r"\brow_name\b", "row of a table of test cases")]),
    Word("way", "algorithm (`algo`); tile config for tiles; transport for ranks", [
        (r"(?<!either_)(?<!on_the_)(?<!all_the_)(?<!half_)(?<!both_)" + part("way") + "|" + r"(?<!both_)(?<!two_)" + part("ways"), CODE),
        (r"\brows? (?:and|or) (?:its |a |their )?ways?\b|\bways? \d|\bway [`'\"]|\b(?:row|kernel|op|convolution|tile)(?:'s)? ways?\b|"
         r"\bways? of (?:a|the|each|its) (?:kernel|row|tile|op|convolution|cop)|\b(?:fastest|plain|chosen|number of|measured|best) ways?\b|"
         r"\bway of (?:the )?cop|\bby its ways?\b|\b(?:a|the|its|each|every) way(?:'s)? (?:is|takes?|needs?|number|name)\b|\bname_way\b|\b(?:cr|ck)_\w*_ways?\b", PROSE),
        (r"(?:^|[/_-])ways?[._-]", NAMES),
    ], [(IDENTIFIER, "int name_way(int way);"), (COMMENT, "best row and way"), (STRING, "conv way 3"), (NAME, "src/cmd_bench_ways.c")]),
    Word("life", "lifetime, live interval", [
        (r"(?<!half_)" + part("life|lives") + r"|\bcr_\w*_?stays?\b|\w+_stay\b(?=[\[(;,. ]*[-.>\[])", CODE),
        (r"\bstays?\b", CODE, (), ("*.cu", "*.cuh")),
        (r"\bcr_(?:life|lives|stays?)\w*|\b(?:the|their|its|all|whose|of|tensors?'?|two|both|no|longest|shortest) lives\b|\blives of\b|--lives\b|\blives\.csv|"
         r"\b(?:a|the|its|one|each|whole|tensor's|pool|long|short|of) (?:\w+ )?life\b|\blife of\b|\b(?:the|its|each|every|first|second) stays?\b|\blives,", PROSE),
        (r"(?:^|[/_-])(?:lives|life)(?=[._/-]|$)", NAMES),
    ], [(IDENTIFIER, "struct cr_life life;"), (COMMENT, "the life of a tensor"), (STRING, "plan --lives"), (NAME, "src/lives_csv.c"), (IDENTIFIER, "struct cr_stay *s;")]),
    Word("fullest", "peak, peak op", [(r"fullest", ALL + NAMES)], [(STRING, "fullest moment: op 12"), (IDENTIFIER, "int fullest_op;")]),
    Word("junction, site, meeting", "conv fusion, fusion candidate, edge cost", [
        (r"junction", ALL + NAMES), (part("sites?"), CODE), (r"(?<!web )(?<!-)\bsites?\b(?!-packages)", PROSE),
        (part("meetings?"), CODE), (r"\bmeetings?\b", PROSE), (r"(?:^|[/_])sites?[._]", NAMES),
    ], [(IDENTIFIER, "cr_junctions_find(p);"), (IDENTIFIER, "struct cr_site *s;"), (COMMENT, "the price of a meeting"), (NAME, "src/passes/junction.c"), (COMMENT, "each site of the program")]),
    Word("take over", "fuse, fused op; supports", [
        (r"\bcr_(?:row|kernel)_takes\b|\bck_\w+_takes\b|\btakes_(?:pattern|half|over|f16|f32)\b|\btaken_over\b|\btake_over\b", CODE),
        (r"\btak(?:e|es|ing) over\b|\btaken over\b|\brows? takes?\b|\bkernels? takes? (?:an?|the|this|such|these|its|no|only) (?:op|conv|shape|pattern|filter)|"
         r"\btaken by (?:a|the|no|another|any) (?:row|kernel|pattern|fus)|\bno (?:row|kernel) takes\b", PROSE),
    ], [(COMMENT, "the conv takes over the ReLU"), (IDENTIFIER, "if (ck_stem_conv_takes(a)) x();"), (DOCUMENT, "each op that is taken\nover")]),
    Word("liberty", "numeric relaxation", [(r"libert(?:y|ies)", ALL + NAMES)], [(IDENTIFIER, "enum cr_liberty l;"), (COMMENT, "liberties that it takes")]),
    Word("judge", "verify, compare; callback `on_sample`", [(r"(?<![a-z])judg(?:e|es|ed|ing|ements?)(?![a-z])|rightly", ALL + NAMES)],
         [(IDENTIFIER, "cr_confusion_judge(c);"), (COMMENT, "The row is judged.")]),
    Word("union", "`mma_sp`", [
        (r"\b(?:cr|ck)_union\w*|(?<![A-Za-z])union_\w+|\w+_union\b|\bCR_UNION\w*", CODE),
        (r"\b(?:cr|ck)_union\w*|\bunion_(?:conv|map|plan|fill)|\bthe union\b(?! of)|\bunions?'? (?:kernels?|conv\w*|format|layout|rows?|form)\b|\.union\b", PROSE),
        (r"^[^\w\n\0]*union\b", (STRING,)), (r"(?:^|[/_])union[._]", NAMES),
    ], [(IDENTIFIER, "ck_union_plan(p);"), (COMMENT, "what the union kernel reads"), (NAME, "cuda/union_conv.cu"), (STRING, "union")]),
    Word("walks", "`wgmma_sp`", [
        (part("walks"), CODE), (r"\b(?:sparse|ck)_walks|\bwalks (?:kernel|conv|format|layout|rows?)|\bthe walks\b|rows_walks", PROSE), (r"^[^\w\n\0]*walks\b|\.walks\b", (STRING,)),
        (r"(?:^|[/_])walks[._]", NAMES),
    ], [(IDENTIFIER, "ck_walks_plan(p);"), (COMMENT, "the walks kernel"), (NAME, "cuda/sparse_walks.cu")]),
    Word("nm", "`two_four`", [
        (part("nm"), CODE), (r"(?-i)\bnm\b|\bck_nm_\w+|\bsparse_nm\w*", PROSE), (r"(?:^|[/_])nm[._]", NAMES),
    ], [(IDENTIFIER, "ck_nm_plan(p);"), (COMMENT, "filters that nm reads"), (NAME, "cuda/sparse_nm.cu")],
        [("*.sh", None, "the tool nm"), ("*.cmake", None, "the tool nm"), ("*.py", r"['\"]nm['\"]", "the tool nm")]),
    Word("block (sparse)", "`block_sparse`", [
        (r"\bck_block_(?!sparse)(?!sum\b|dim|id|max|reduce|scan|any|all|list)\w+|\bcr_blocks\b|\bcr_blocks_\w+|\bcr_block_how\b|\bcr_sparse_(?:count_)?blocks\b", CODE),
        (r"\bcr_blocks\b|\bck_block_(?:plan|conv)\w*|\bblocks? (?:layout|format|form|way|kernel)\b|\bthe row of blocks\b|\blayout of blocks\b", PROSE),
        (r"rows_block\b", ALL + NAMES),
    ], [(IDENTIFIER, "struct cr_blocks *b;"), (IDENTIFIER, "ck_block_plan(p);"), (NAME, "cuda/rows_block.c"), (COMMENT, "read by the block layout")]),
    Word("turned", "transposed, rotated filter", [
        (r"(?<![A-Za-z])turned(?![A-Za-z])|\bcr_sparse_turn\w*|\bfilter_turn\w*|\bsparse_turn\w*", CODE),
        (r"\bcr_sparse_turn\w*|\bturned (?:filters?|weights?|copy|once|by|round|form|gradients?)|\b(?:filters?|weights?) (?:is |are |that is )?turned\b|"
         r"\b(?:is|are|be|been|once|one|the|a) turned\b(?! (?:on|off|into|out))|\bturns? (?:a|the|its|each) (?:\w+ )?(?:filters?|weights?)", PROSE),
        (r"(?:^|[/_])turn(?:ed)?[._]", NAMES),
    ], [(IDENTIFIER, "cr_sparse_turned(f);"), (COMMENT, "The filter is turned once."), (IDENTIFIER, "int filters_turned;")]),
    Word("stretch", "linearised offsets", [
        (r"stretch", ALL + NAMES),
    ], [(IDENTIFIER, "struct cr_stretched *s;"), (COMMENT, "a stretch of the filter")],
        [("src/augment*", None, "contrast stretch of an image"), ("src/data/augment/*", None, "contrast stretch of an image"),
         ("scripts/gpu/*", r"stretch \d", "a stretch goal"), ("*", r"contrast|histogram", "contrast stretch of an image")]),
    Word("slices (sparse)", "SELL slices", [
        (r"\bcr_(?:sparse_)?slices?\b|\bcr_(?:sparse_)?slices_\w+", CODE),
        (r"\bcr_sparse_slices\w*|(?<!sell )(?<!sell-)(?<!`)\bslices? of (?:\d+|rows|filters|k|a group)\b|(?<!sell )(?<!sell-)\bin slices\b|\bsliced (?:filter|weight|row)s?\b", PROSE, SPARSE),
    ], [(IDENTIFIER, "struct cr_sparse_slices s;")]),
    Word("kept (weights)", "nonzeros, `nnz`", [
        (r"\bkept_(?:elems|of|a_row|zeros)\w*|\w+_kept_elems\b|\bcr_\w*kept\w*|\bCR_(?:IN|OUT)_\w+_kept\b|\b(?:update|is|count|set|has|by|any|filter|target|put|ck_copy16)_kept\b|(?:->|\.)kept\b|"
         r"\bint(?:32_t|64_t)? kept\b", CODE, (), ("src/config/*", "src/ini*", "src/runtime/*", "src/exec*", "src/checkpoint*")),
        (part("kept"), CODE, SPARSE),
        (r"\bkept_elems\b|\bkept (?:weights?|elements?|elems|values?|entries|entry|numbers?|positions?|columns?|ones)\b|\bweights? (?:that |which )?(?:are |is |it has )?kept\b|`kept`|"
         r"\bshare of (?:\w+ )?kept\b|\bkept (?:a|per) row\b|\b(?:the|its|number|what is) kept\b(?! (?:in|on|as|at|for|by|when|while|until|under|and|from|with))", PROSE),
    ], [(IDENTIFIER, "int64_t kept_elems;"), (COMMENT, "number of kept weights"), (IDENTIFIER, "CR_IN_conv_kept")]),
    Word("layout (sparse)", "weight format", [
        (r"\bcr_(?:cuda|cpu)?_?(?:sparse_)?layouts?\b|\bCR_LAYOUTS?_\w+|\bsparse_layouts?\b|\b(?:name|find|print|fit|has)_layout\b|\blayout_name\b|\blayouts_have\w*|\bpattern(?:->|\.)layout\b|"
         r"\bsparse\w*(?:->|\.)layout\b", CODE),
        (r"\bsparse layouts?\b|\blayouts? of (?:the |a |its )?(?:sparse|kept|pruned|nonzeros?|pattern)|\blayouts? (?:\d+|number)\b|\bnumber of layouts\b|\blayouts are numbered\b|\blayouts of (?:a|one|each) layer\b|"
         r"\bone of a device's (?:forms|layouts)\b|\bcr_layout\w*", PROSE),
        (r"\blayouts?\b", (COMMENT, DOCUMENT), ("src/device/cpu/*sparse*", "src/cpu/cpu_sparse*", "cuda/sparse/*", "cuda/rows_sparse*", "cuda/rows_walks*", "cuda/rows_union*", "cuda/rows_nm*", "docs/*sparsity*",
                                               "src/compiler/*sparsify*", "src/passes/sparsify*")),
        (r"\blayouts?(?:_name)?\b", (STRING, COMMENT), ("src/passes/sparsify*", "src/compiler/*sparsify*", "tests/*sparsify*", "tests/*forecast*", "tests/tools/choices*")),
    ], [(IDENTIFIER, "int CR_LAYOUTS_MAX;"), (COMMENT, "layouts are numbered from 0"), (COMMENT, "the sparse layout")],
        [("*", r"\b(?:NHWC|KRSC|NCHW|memory|thread|register|fragment|operand|shared|CSR|tensor|data|swizzl\w*|wgmma|mma) ?layouts?|layouts? (?:of|in) (?:memory|shared|registers?|x|y|the (?:image|tensor|operand|fragment|accumulator))", "layout of a tensor or of an operand")]),
    Word("pattern (sparse)", "sparsity pattern", [
        (r"\bcr_pattern_attr\b|\bcr_op_has_pattern\b|\bcr_session_pattern\w*", CODE),
        (r"\bcr_pattern_attr\b|\b(?:convolution|conv|filter|op|weight)s? (?:that has |that have |with|without|has|have|of) (?:a |no |the )?patterns?\b|\bstore's patterns?\b|"
         r"(?<!sparsity )\bpatterns? of (?:a|the|its|each|all) (?:filter|weight|param|store|convolution)|\b(?:a|no) pattern in the store\b", PROSE),
    ], [(IDENTIFIER, "struct cr_pattern_attr a;"), (COMMENT, "convolutions with a pattern")]),
    Word("foresee", "estimate, estimated", [(r"foresee|foresaw", ALL + NAMES)], [(IDENTIFIER, "cr_device_foresee(d);"), (COMMENT, "what is foreseen to be far behind")]),
    Word("hopeless", "pruned candidates", [(r"hopeless", ALL + NAMES)], [(COMMENT, "hopeless candidates")]),
    Word("tell", "explain; `cr_selection`", [
        (part("tells?|told"), CODE), (r"\b(?:told|tells?)\b(?! apart| \w+ apart)|\bcr_told\b", PROSE), (r"(?:^|[/_])(?:tell|told)[._]", NAMES),
    ], [(IDENTIFIER, "struct cr_told *told;"), (COMMENT, "the pass is told of it"), (STRING, "tells what it chose")]),
    Word("cr_target", "cost model, `struct cr_cost_model`", [
        (r"\bcr_targets?\b|\bcr_target_\w+|\bcr_(?:device|session|costs|cost_table)_target\b|\btarget_(?:tell|select|foresee|accepts|reads_host|name_way|kept_elems|cost|clones|explain|estimate)\b|"
         r"\bcr_cost_model \*\w*target\b|\b(?:hand|late|greedy|plain|costs|cost)_target\b", CODE),
        (r"\bcr_target\b|\btargets? as passes see\b|\bthe target (?:says|foresees|accepts|tells|estimates)\b|\btarget of (?:the )?(?:pass|compil)|\bpasses and targets\b|\bcosts? of the target\b", PROSE),
        (r"(?:^|/)costs_target\.", NAMES),
    ], [(IDENTIFIER, "const struct cr_target *target;"), (COMMENT, "A cr_target is given.")]),
    Word("lane", "stream (`CR_STREAM_*`)", [
        (r"\bcr_lanes?\b|\bcr_lanes?_\w+|\bCR_LANES?\w*|\blane_(?:wait|begun|name|inputs|mark)\w*|\w+_same_lane\b|\bby_lane\b|\bopen_lanes\b|(?:->|\.)lanes?\b(?! *\()", CODE),
        (part("lanes?"), CODE, (), ("*.cu", "*.cuh", "src/cpu/*", "src/device/cpu/*", "*avx*", "src/core/*", "cuda/*.h", "src/data/image/*", "tests/*cpu*", "src/resize*", "src/image*",
                                  "src/sparsity/*", "src/data/augment/*")),
        (r"(?<!warp )(?<!simd )(?<!vector )\blanes?\b(?! of (?:a|the|each) (?:warp|vector|register|quad))", PROSE, (),
         ("*.cu", "*.cuh", "src/cpu/*", "src/device/cpu/*", "*avx*", "src/core/*", "cuda/sparse*.h", "cuda/sparse/*", "cuda/kernels.h", "cuda/pointwise/*", "cuda/conv/*", "cuda/*_conv.h", "cuda/point_grad.h",
          "src/sparsity/*", "src/resize*", "src/data/image/*", "src/image*", "src/data/augment/*")),
        (r"(?:^|[/_])lanes?[._]", NAMES, (), ("src/cpu/cpu_lanes.h", "src/device/cpu/*")),
    ], [(IDENTIFIER, "enum cr_lane lane;"), (COMMENT, "on another lane"), (NAME, "src/passes/lanes.c"), (IDENTIFIER, "CR_LANE_COMM")]),
    Word("mark", "event", [
        (r"(?<!bit_)(?<!byte_order_)" + part("marks?") + r"(?!_best\b|_as_|down)|\brun_marked\b|\bmarks?_(?:set|open|close)\w*", CODE),
        (r"\b(?:(?<!question )(?<!quotation )(?<!exclamation )(?<!order )(?<!water )marks (?:around|and|of|on|where|are|between)|marks? after|(?:a|the|its|two|another|set|first|last|each|every|by|time|such|these) marks?)\b(?! (?:as|it|them|the))", PROSE),
        (r"(?:^|[/_])marks?[._]", NAMES),
    ], [(IDENTIFIER, "void *mark;"), (COMMENT, "waits for a mark of another stream"), (IDENTIFIER, "async->mark_set(d, m);")],
        [("*", r"question marks?|quotation marks?|quote marks?|byte.order mark|\bBOM\b|xef|water ?mark|exclamation", "punctuation"),
         ("src/formats/torch/pickle*", None, "MARK is an opcode of pickles")]),
    Word("recording", "captured graph, capture", [
        (part("recordings?") + "|" + part("recorded") + r"|\brecord_(?:begin|end|launch)\b|\bis_recording\b", CODE, (), ("*trace*", "*tensorboard*", "scripts/*", "tests/golden/*")),
        (r"\brecordings?\b", PROSE), (r"\brecorded (?:steps?|launch\w*|graphs?|once|ops?|program)\b|\b(?:step|steps|program|launches|ops) (?:is|are|was|be|been) recorded\b", PROSE),
        (r"\b(?:is|are|was|were|be|been|being|not) recorded\b", PROSE, (), ("*trace*", "*tensorboard*", "*metrics*", "*log*", "CONTRIBUTING.md", "*golden*")),
        (r"(?:^|[/_])record(?:ing|ings|ed)?[._]", NAMES),
    ], [(IDENTIFIER, "bool is_recording;"), (COMMENT, "a recording of the step")]),
    Word("sync op, token", "barrier op, event tensor", [
        (r"\bsync_op\b|\bCR_OP_sync\b|\bCR_(?:IN|OUT)_sync_\w+|\w+_token\b|\btokens?\b|\btokens?_\w+|\w+_tokens\b|\bOP\(sync\b", CODE),
        (r"\bsync ops?\b|\bop sync\b|\b(?:a|the|its|each|such|of) tokens?\b|\btokens? (?:of|that|is|are|from|for)\b", PROSE),
    ], [(IDENTIFIER, "CR_OP_sync"), (COMMENT, "the token of a prefetch"), (IDENTIFIER, "int token;")],
        [("src/formats/*", None, "tokens of a text format"), ("src/json*", None, "tokens of a text format"), ("src/config/*", None, "tokens of a text format"),
         ("src/cli/*", None, "words of a command line"), ("src/comm/*", None, "a random number that identifies a process"), ("scripts/*", None, "tokens of source code"), ("tests/*.py", None, "tokens of source code"), ("*", r"GITHUB_TOKEN|string token|tokeni[sz]", "tokens of a text"),
         ("src/inspect/*", None, "tokens of a text format"), ("tests/*program*text*", None, "tokens of a text format")]),
    Word("swap", "offload, prefetch", [
        (r"(?<!compare_)(?<!byte_)(?<!memory_)(?<!memory\.)(?<!memory->)(?<!b)" + part("swap(?:s|ped|ping|_in|_out)?") + r"(?!\s*\((?!.*\bcr_)|_bytes\b|_endian\b|_if\b|_pairs?\b)", CODE),
        (r"(?<!memory\.)(?<!memory, )(?<!compare-and-)(?<!--set )(?<![A-Za-z])swap(?:s|ped|ping)?(?![A-Za-z])(?! (?:space|file|partition|two|places|rows|neighbours|the (?:order|operands|bytes)))", PROSE),
        (r"(?:^|[/_])swap(?:s|ped)?[._]", NAMES),
    ], [(IDENTIFIER, "CR_OP_swap_in"), (COMMENT, "tensors that are swapped"), (NAME, "src/passes/swap.c"), (STRING, "swap traffic")],
        [("*", r"memory[.,] ?\"?swap|\[memory\]|^\s*swap *=|CR_SWAP_(?:OFF|AUTO|ON|NO|YES)\b|\bENUM\(memory, swap\b|\(memory, swap", "the INI key memory.swap keeps its name"),
         ("configs/*", None, "the INI key memory.swap keeps its name"),
         ("docs/reference/config.md", None, "the INI key memory.swap keeps its name")]),
    Word("read there", "mapped read (zero-copy)", [
        (r"\breads?_there\b", CODE), (r"\bread there\b|\breads? (?:it|them) there\b|\bzero copy\b", PROSE),
    ], [(DOCUMENT, "activations that are \"read there\""), (IDENTIFIER, "bool read_there;")]),
    Word("beside", "contention, overhead; next to", [
        (part("beside"), CODE), (r"\bbeside\b", PROSE), (r"(?:^|[/_])beside[._]", NAMES),
    ], [(IDENTIFIER, "struct cr_beside b;"), (COMMENT, "what copies cost beside kernels")]),
    Word("described", "offline device", [
        (part("described"), CODE), (r"\bdescribed (?:devices?|gpus?|machines?|cards?|backends?|by (?:arithmetic|figures|its))\b|\b(?:device|gpu|machine|one) (?:that )?is only described\b|^described\b|:described\b", PROSE),
        (r"described", NAMES),
    ], [(IDENTIFIER, "cuda_described_open(d);"), (COMMENT, "a described GPU"), (NAME, "cuda/cuda_described.c")]),
    Word("meet, board, seat", "rendezvous, shared state, slot", [
        (part("boards?|seats?") + r"", CODE), (r"\bmeet\b|\w+_meet\b|(?<![a-z]_)\bmeet_(?!the)\w+", CODE, (), ("cuda/elementwise/*", "cuda/conv/*")),
        (r"(?<!on )\bboards?\b|\bseats?\b|\branks? (?:\w+ )?meets?\b|\bmeet(?:s|ing)? (?:each other|through|over|there|again)\b|\branks? to meet\b|\bwhere (?:they|ranks) meet\b", PROSE),
        (r"(?:^|[/_])(?:meet|board|seat)s?[._]", NAMES),
    ], [(IDENTIFIER, "cr_comm_board_meet(b);"), (IDENTIFIER, "int seat;"), (COMMENT, "where ranks meet"), (NAME, "src/comm_meet.c"), (COMMENT, "the board of the ranks")],
        [("*", r"(?:requirement|bound|budget)s? (?:is|are) met", "a bound that is met")]),
    Word("ask, hear", "request, poll", [
        (r"(?<![A-Za-z])(?:asks?|asked|hears?|heard)(?![A-Za-z])", CODE), (r"\b(?:asks?|asked|hears?|heard|unheard)\b", PROSE), (r"(?:^|[/_])(?:ask|hear)[._]", NAMES),
    ], [(IDENTIFIER, "bool save_asked;"), (COMMENT, "as a rank asks"), (IDENTIFIER, "cr_comm_hear(c);")],
        [("*", r"asks? (?:first|the user|on the terminal|for (?:help|support))|(?:frequently|questions?) asked|asking|ask (?:a question|questions|in an issue)", "questions that people ask"), ("SECURITY.md", None, "people ask"), ("CONTRIBUTING.md", None, "people ask")]),
    Word("speaks", "reports error", [(part("speaks?|spoken|spoke"), CODE), (r"\b(?:speaks?|speaking|spoken)\b", PROSE)],
         [(IDENTIFIER, "cr_comm_speaks(c);"), (COMMENT, "the rank that speaks")]),
    Word("patience", "timeout", [(r"patien(?:ce|t)", ALL + NAMES)], [(IDENTIFIER, "double patience_s;"), (STRING, "patience ran out")],
         [("*", r"(?:config|ranks)(?:\.|->)patience|ranks, patience", "the INI key ranks.patience"),
          ("*", r"train\W+patience|^\s*patience *=", "the INI key train.patience (early stopping)"),
          ("tests/unit/training/test_best.c", None, "the INI key train.patience (early stopping)"),
          ("docs/reference/config.md", r"`patience`", "the INI keys ranks.patience and train.patience")]),
    Word("order (pass)", "synchronise, insert waits", [
        (r"\bcr_pass_order\b|\bcr_order_check\w*|\border_check\b|\bcorrupted_orders\w*", CODE),
        (r"\bcr_pass_order\b|\border pass\b|\bpass `?order\b|\border check\b", PROSE), (r"(?:^|/)(?:order|order_check|order_shuffle)\.[ch]$|test_order\b|\.order\.txt$", NAMES),
    ], [(IDENTIFIER, "cr_pass_order(p);"), (NAME, "src/passes/order.c"), (COMMENT, "after the order pass")]),
    Word("disturb", "jitter", [(r"disturb", ALL + NAMES)], [(IDENTIFIER, "cr_exec_disturb(e);"), (NAME, "src/exec_disturb.c")]),
    Word("coef", "`scale_bias`, scale and bias", [
        (r"(?<![A-Za-z])coefs?(?![A-Za-z])", CODE + PROSE), (r"(?:^|[/_])coefs?[._]", NAMES),
    ], [(IDENTIFIER, "CR_IN_conv_coef"), (IDENTIFIER, "float *coef_half;"), (COMMENT, "reads act(x) by its coef")],
        [("*jpeg*", None, "coefficients of a JPEG block"), ("src/data/image/*", None, "coefficients of a JPEG block")]),
    Word("saved", "`mean_rstd`", [
        (r"\bCR_(?:IN|OUT)_\w*saved2?\b", CODE),
        (part("saved") + r"(?!_(?:errno|stderr|stdout|by|state|fd|locale))", CODE, NETWORK, ("cuda/sparse/*",)),
        (r"\bsaved (?:mean|and rstd|rstd|statistics)\b|\b(?:from|its|and|or) saved\b|\bslot saved\b|\bsaved:", PROSE, NETWORK),
    ], [(IDENTIFIER, "CR_OUT_bn_finalize_saved")]),
    Word("stats, dstats", "`sums`, `grad_sums`", [
        (part("d?stats2?"), CODE), (r"\bd?stats2?\b|\bbn_(?:grad_)?stats\b", PROSE), (r"(?:^|[/_])d?stats[._]", NAMES),
    ], [(IDENTIFIER, "CR_OP_bn_grad_stats"), (COMMENT, "dstats are summed"), (IDENTIFIER, "float *stats;")],
        [("*", r"pool_stats|mem(?:ory)?_stats|running stats|\bpstats\b|git .*--stats?|\bcProfile\b", "statistics of a tool")]),
    Word("gate", "`se_scale` (squeeze-excite), `relu_mask` (ReLU gradient), verification case", [
        (r"(?<![A-Za-z])d?gat(?:e|es|ed|ing)(?![A-Za-z])", CODE), (r"\bd?gat(?:e|es|ed|ing)\b", PROSE), (r"(?:^|[/_])gates?[._]", NAMES),
    ], [(IDENTIFIER, "CR_OP_gate_grad"), (COMMENT, "a gate of ReLU"), (NAME, "cuda/gate.cu")]),
    Word("pin (costs)", "load fixed", [
        (r"\bcr_costs?_(?:table_)?pin\w*|\bpin_(?:costs?|rows?|ways?|kernels?)\b|\bcosts?_(?:are_)?pinned\b", CODE),
        (r"\bcr_costs_pin\b|\bpin(?:s|ned|ning)? (?:the )?(?:costs?|choices?|rows?|kernels?|ways?)\b|\b(?:costs|choices) (?:are |that are )?pinned\b", PROSE),
    ], [(IDENTIFIER, "cr_costs_pin(c);"), (COMMENT, "pinned costs")]),
    Word("flight, pending", "in-flight step", [
        (r"(?<!in_)" + part("flights?"), CODE, (), ("*.cu", "*.cuh")), (r"\bstruct pending\b|(?:->|\.)pending\b", CODE), (r"(?<!in-)(?<!in )\bflights?\b|\bpending (?:steps?|runs?|launch\w*)\b", PROSE),
        (r"(?:^|[/_])flights?[._]", NAMES),
    ], [(IDENTIFIER, "struct flight f;"), (IDENTIFIER, "f->pending = p;"), (COMMENT, "the pending run")]),
    Word("leap, look", "multi-symbol table, table lookup", [
        (part("leaps?"), CODE), (part("looks?"), CODE, ("*jpeg*", "src/data/image/*")), (r"\bleaps?\b(?! (?:second|year))", PROSE),
    ], [(IDENTIFIER, "make_leaps(t);"), (COMMENT, "a leap of two symbols")]),
    Word("store, plane", "parameter store (`cr_param_store`), flat buffer", [
        (r"\bcr_stores?\b|\bcr_store_\w+|\bCR_STORE_\w+", CODE),
        (r"\bcr_planes?\b|\bCR_PLANES?_\w+|\bcr_\w+_planes?\b|\bcr_store_plane\w*|\bplane_(?:offset|dtype|plan|release|prepare|put|get|plans)\b|\bstore_plane\w*", CODE),
        (part("planes?"), CODE, (), ("*.cu", "*.cuh", "cuda/*.h", "*image*", "*jpeg*", "*png*", "src/cpu/*", "src/device/cpu/*", "cuda/sparse/*", "src/sparsity/*", "src/data/*", "src/resize*", "tests/*resize*", "tests/*data*",
                                   "tests/*sparse*", "cuda/*sparse*", "cuda/conv/*", "cuda/baseline/*", "*im2col*")),
        (r"\bcr_store\b|\b(?:in|into|of|from|to) (?:the|a|its) (?:\w+'s )?store\b|\bthe store(?:'s)?\b", PROSE, (), ("*.cu", "*.cuh")),
        (r"\bplanes?\b", (COMMENT, STRING, DOCUMENT), (), ("*.cu", "*.cuh", "*image*", "*jpeg*", "*png*", "cuda/conv/*", "cuda/baseline/*", "cuda/sparse/*", "src/sparsity/*", "src/data/*", "src/device/cpu/*", "src/cpu/*",
                                                         "tests/*resize*", "src/resize*", "*im2col*", "*sparse*")),
        (r"(?:^|[/_])planes?[._]|^src/(?:graph/)?store\.", NAMES),
    ], [(IDENTIFIER, "struct cr_store *store;"), (IDENTIFIER, "cr_state_planes_get(s);"), (COMMENT, "a tensor of the store"), (COMMENT, "one plane per moment"), (NAME, "src/store.c")],
        [("*", r"parameter store|key-value store|(?:MPI|TCP)Store|memory store|store (?:instruction|buffer)s?|(?:colour|color|image|spatial|pixel|chroma|luma|bit) ?planes?", "parameter store; planes of an image")]),
    Word("costs", "autotuning table, kernel times (`cr_cost_table`)", [
        (r"\bcr_costs\b|\bcr_costs_\w+|\bcr_cost_keeps\w*|\b\w+_costs\b|\bcosts_(?:from|anew|text|length|ordered|parts|measure|copies|are|that)\w*|(?:->|\.)costs\b", CODE),
        (r"\bcr_costs\b|\b(?:stored|measured|known|kernel|remembered|kept|device's|these|its|new|old) costs\b|\bcosts (?:file|of (?:this|the|a|its) (?:device|kernels|rows|checkpoint|gpu|run|machine))\b|"
         r"\bcosts are (?:not )?(?:measured|known|read|written)\b", PROSE),
        (r"(?:^|[/_])costs[._]", NAMES, (), ("tests/fuzz/corpus/*",)),
    ], [(IDENTIFIER, "struct cr_costs *costs;"), (COMMENT, "where costs are measured"), (NAME, "src/costs.c"), (STRING, "measured costs")]),
    Word("baseline row", "benchmark baseline, outside the device's table", [
        (r"\brow(?:s\[\w+\])?(?:->|\.)baseline\b|\bkernel(?:s\[\w+\])?(?:->|\.)baseline\b|\.baseline *= *true", CODE),
        (r"\bbaseline rows?\b|\brows? `?baseline\b|\brows? (?:that are|marked) baseline", PROSE),
    ], [(IDENTIFIER, "if (!row->baseline) x();"), (COMMENT, "baseline rows of the device")]),
    # ---- what people read ----
    Word("to the bit", "bitwise identical", [
        (r"(?<![a-z])to_the_bit(?![a-z])", CODE), (r"\bto the (?:last )?bit\b|\bto a bit\b|\bequal bit by bit\b", PROSE),
    ], [(DOCUMENT, "is equal\nto the bit"), (IDENTIFIER, "resumes_to_the_bit"), (COMMENT, "the same to the bit")]),
    Word("judged by one reference in double", "tested against an FP64 reference", [
        (r"\bjudged by\b|\breference in double\b|\bone reference in\b", PROSE),
    ], [(DOCUMENT, "judged by one reference in double"), (COMMENT, "by a reference in double")]),
    Word("pictures", "images, synthetic images", [
        (part("pictures?|picture_\\w+"), CODE), (r"\bpictures?\b|\bdrawn (?:images|data|photos)\b", PROSE), (r"pictures?", NAMES),
    ], [(IDENTIFIER, "struct cr_picture p;"), (DOCUMENT, "drawn pictures"), (STRING, "%d pictures")]),
    Word("right (correct)", "correct", [
        (r"\bright[15]\b|\w+_right\b(?=\()|\b(?:single|unary|verdict|most|count)_right\b|(?:->|\.)right[15]?\b", CODE),
        (r"(?:\d|%[a-z0-9.%]+|%\" ?PRI\w+ ?\") right\b|\b(?:is|are|were|was|be|answers|numbers|still|all) right\b(?! (?:now|hand|away|side|after|before|of|above|below|shift|behind|operand))|\bright answers?\b|\b(?:top-?1|top-?5) right\b", PROSE),
    ], [(STRING, "9173 right"), (COMMENT, "the numbers are right"), (IDENTIFIER, "x->right1 = 0;"), (STRING, "%d right")]),
    Word("share (part)", "fraction, percentage", [
        (r"\b\w+_share\b(?!\s*\()|\bshare\b(?=\s*[;,=)*/<>\]-])|\bshare_(?:of|most|at)\b|\bshares\b|\b(?:sparse|own|margin|add|load|run|log|wait|f32|tf32)_shares?\b", CODE, (), ("*.cu", "*.cuh", "cuda/collectives/*")),
        (r"\bshares? of\b|\b(?:the|its|this|their|what|equal|own|no|every|small|large|larger|largest) share\b|\bas a share\b|\bshare (?:in|that) (?:percent|is)\b|\b(?:a|in) share\b(?!d)", PROSE),
    ], [(IDENTIFIER, "double sparse_share;"), (DOCUMENT, "the share of zeros"), (COMMENT, "its share")],
        [("*", r"/usr/(?:local/)?share|/share/|DATAROOTDIR", "installation folder share/")]),
    Word("matrix units", "tensor cores", [(r"\bmatrix[ _]units?\b", ALL)], [(COMMENT, "of the matrix units")]),
    Word("its dense self", "the dense network", [(r"\bdense self\b|\bdense_self\b", ALL)], [(DOCUMENT, "beats its dense self")]),
    Word("share of the roof", "percent of roofline", [(r"\broofs?\b", PROSE), (part("roofs?"), CODE)], [(STRING, "share of the roof"), (DOCUMENT, "70 % of the roof")]),
    Word("exec to the end of the first step", "time to first step, from process start", [
        (r"\bexec to the\b|\bto the end of the first step\b", PROSE)], [(DOCUMENT, "exec to the end of the first step")]),
    Word("values 0.01 s, kernels 0.4 s", "weight initialisation, kernel selection", [
        (r"\b(?:values|kernels) (?:%\.?\d*l?f|\d+\.\d+) ?s\b", OUTPUT)], [(STRING, "values %.2f s, kernels %.1f s"), (DOCUMENT, "kernels 0.4 s")]),
    Word("Nothing is on the host", "parameters are created on the GPU; the host holds only images and metrics", [
        (r"\bnothing is (?:on|in) the host|\bon the host but\b", PROSE)], [(DOCUMENT, "Nothing is on the host but pictures and metrics")]),
    Word("wait in the host's memory", "are offloaded to host memory or recomputed (activation checkpointing)", [
        (r"\bwaits? in (?:the )?host|\bcomputed a second time\b|\bcomputed (?:again|twice) instead\b", PROSE)],
         [(DOCUMENT, "wait in the host's memory"), (COMMENT, "are computed a second time")]),
    Word("is a rank's", "is the batch size per GPU", [(r"\b(?:is|are) a rank's\b", PROSE)], [(DOCUMENT, "`train.batch` is a rank's")]),
    Word("beside the plain way", "chosen fusions, and the unfused cost", [
        (r"\bthe plain ways?\b|\bwhat each convolution takes\b", PROSE)], [(STRING, "what each convolution takes over, beside the plain way")]),
    Word("laws, house, bitten", "invariants, architecture, pitfalls", [
        (r"\blaws?\b(?! of (?:large|large numbers))", PROSE), (part("laws?"), CODE), (r"\bthe house\b|\bhouse (?:rules?|style)\b|\bparts? of the house\b", PROSE), (r"\bbitten\b", PROSE)],
         [(COMMENT, "Laws"), (DOCUMENT, "## The house"), (DOCUMENT, "What has bitten us")],
         [("packaging/THIRD_PARTY_NOTICES.md", r"Copyright laws", "the text of a licence")]),
    Word("sets the smallest weights to 0", "prunes by magnitude", [
        (r"\bsmallest weights to (?:0|zero)\b", PROSE)], [(STRING, "Sets the smallest weights to 0")]),
    Word("apart from it, times lr", "decoupled weight decay", [(r"\bapart from it\b|\btimes lr\b(?! \*)", PROSE)], [(STRING, "apart from it, times lr")]),
    Word("share of the old", "EMA decay", [(r"\b(?:share|part|fraction) of the (?:old|new)\b", PROSE)], [(STRING, "share of the old in moving averages")]),
    Word("is there twice", "no duplicates", [(r"\b(?:is|are|was|were) there twice\b", PROSE)], [(STRING, "no picture is there twice")]),
    Word("not sound", "failed verification", [(r"\bnot sound\b|\bunsound\b", PROSE)],
         [(STRING, "1 of 1 files or data sets are not sound")]),
    # ---- sentences ----
    Word("besides, of two the", "a full sentence with subject and verb", [
        (r"\bbesides\b|\bof two the\b|\bof several the\b|\bbeyond all reason\b", PROSE),
        (r"(?-i)(?:^ *|[.:;] )(?:Who|What) (?:is|has|wants|needs|comes|includes|goes|lies|grows|reads|writes)\b(?![^.?]*\?)", (COMMENT,)),
    ], [(COMMENT, "and besides, it is fast"), (COMMENT, "Of two the faster."), (COMMENT, "Who includes this file defines it.")]),
    Word("0 means 1", "the real default value", [
        (r"\b0 means 1\b|\b0: (?:as )?1\b(?![.\d])|\b0 (?:counts|is taken) as 1\b|\b0: as one\b", PROSE),
    ], [(COMMENT, "ranks; 0: as 1"), (COMMENT, "0 means 1")]),
]
