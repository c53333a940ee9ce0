#include "cli/args_table.h"

#include "report/report.h"

#define NAMES (const char *const[])
#define ANY   (size_t) - 1

static const struct cld_option help = {
    .name = "help", .letter = 'h', .help = "print help; after a command, that of the command"};
static const struct cld_option version = {.name = "version", .help = "print the version"};
static const struct cld_option verbose = {
    .name = "verbose", .letter = 'v', .help = "say more on stderr"};
static const struct cld_option quiet = {
    .name = "quiet", .letter = 'q', .help = "say only warnings and errors on stderr"};

const struct cld_option *const cld_global_options[] = {&help, &version, &verbose, &quiet, NULL};

static const struct cld_option json = {.name = "json", .help = "print JSON"};
static const struct cld_option set = {
    .name = "set",
    .value = "S.K=V",
    .repeats = true,
    .help = "set key K of section S; wins over the file, the last one wins"};
static const struct cld_option resume = {
    .name = "resume",
    .value = "DIR",
    .help = "go on from a checkpoint, or from the newest one of a run directory"};
static const struct cld_option print_config = {
    .name = "print-config", .help = "print every value and where it is from, then stop"};
static const struct cld_option watch = {.name = "watch",
                                        .help = "again every two seconds, until the run has ended"};
static const struct cld_option page = {
    .name = "out",
    .value = "FILE",
    .help = "where the page goes (default report.html: in RUN_DIR, or here for several)"};
static const struct cld_option drafter = {.name = "drafter",
                                          .value = "DIR",
                                          .needed = true,
                                          .help =
                                              "the drafter: a checkpoint or an exported directory"};
static const struct cld_option device = {
    .name = "device",
    .value = "D",
    .help = "number that 'cldraft devices' prints, or a part of the device's or platform's name"};
static const struct cld_option precision = {
    .name = "precision",
    .value = "P",
    .names = NAMES{"fp32", "bf16", NULL},
    .help = "storage of weights and activations (default fp32)"};
static const struct cld_option both = {
    .name = "precision",
    .value = "P",
    .names = NAMES{"fp32", "bf16", NULL},
    .help = "storage of weights and activations (default: one after the other)"};
static const struct cld_option attention = {.name = "attention",
                                            .value = "A",
                                            .names = NAMES{"sparse", "dense", NULL},
                                            .help = "attention back-end (default sparse)"};
static const struct cld_option op = {
    .name = "op", .value = "O", .help = "check only operations whose name has O in it"};
static const struct cld_option program = {.name = "program",
                                          .value = "P",
                                          .names = NAMES{"auto", "source", "cached", "spirv", NULL},
                                          .help = "what kernels are built from, as runtime.program "
                                                  "(default source); cached: source, then the "
                                                  "binaries that this gave"};
static const struct cld_option kernels = {
    .name = "kernels",
    .value = "K",
    .names = NAMES{"cpu", "gpu", NULL},
    .help = "kernels for CPUs or those for GPUs (default: both, which run on any device)"};
static const struct cld_option all_kernels = {
    .name = "kernels",
    .value = "K",
    .names = NAMES{"cpu", "gpu", "both", NULL},
    .help = "kernels for CPUs, those for GPUs, or both, which "
            "run on any device (default: both on a CPU, "
            "gpu on a GPU, where the other takes minutes)"};
static const struct cld_option only_case = {
    .name = "case",
    .value = "NAME",
    .help = "run the one case of this name, as a failure prints it"};
static const struct cld_option mode = {
    .name = "mode",
    .value = "M",
    .names = NAMES{"check", "grad", "support", "perf", NULL},
    .help =
        "check (default): every case; grad: gradients against finite differences in more "
        "directions; "
        "support: a case of each operation, to see what the device can do; perf: the time of each "
        "operation at a modest size, by the kernels that the device has by itself"};
static const struct cld_option all = {
    .name = "all",
    .help = "every device of every platform, or that of --device, from source, from cached "
            "binaries and from SPIR-V modules; prints a table"};
static const struct cld_option report = {
    .name = "format",
    .value = "F",
    .names = NAMES{"table", "json", "junit", NULL},
    .help = "how results are printed (default table: a line a case without --all)"};
static const struct cld_option golden = {
    .name = "golden",
    .value = "FILE",
    .help = "compare verdicts with those of the file: FIX, REGRESSION or DIFFERENCE; only a "
            "regression fails"};
static const struct cld_option update_golden = {
    .name = "update-golden", .help = "write the verdicts into the golden file instead"};
static const struct cld_option limit = {
    .name = "limit",
    .value = "N",
    .number = true,
    .help = "leave out cases whose tensors have more than N elements together, for slow devices"};
static const struct cld_option summary = {
    .name = "summary", .help = "make docs/vendors.md of these golden files; run nothing"};
static const struct cld_option modules = {
    .name = "modules", .value = "DIR", .help = "directory of SPIR-V modules, as runtime.modules"};
static const struct cld_option out = {
    .name = "out",
    .value = "DIR",
    .help = "make the modules there; without it the variants are printed"};
static const struct cld_option checks = {
    .name = "checks", .help = "also the variants of check-kernels, of all operations or of --op O"};
static const struct cld_option variants = {
    .name = "variants", .value = "FILE", .help = "also those of a list that was printed"};
static const struct cld_option ptx = {.name = "ptx",
                                      .help = "also make each module's form for NVIDIA's driver"};
static const struct cld_option list = {
    .name = "list",
    .help = "print the operations and what errors they may have, and why; run none"};
static const struct cld_option seed = {
    .name = "seed", .value = "N", .number = true, .help = "seed of the inputs"};
static const struct cld_option format = {.name = "format",
                                         .value = "F",
                                         .names = NAMES{"md", "csv", "json", "jsonl", "sql", NULL},
                                         .help = "how results are printed (default md)"};
static const struct cld_option journal = {
    .name = "out",
    .value = "FILE",
    .help = "also append results to a file (JSON, one a line); what it has already of this build, "
            "device "
            "and configuration is not measured again; with --tune: write the table there"};
static const struct cld_option tune = {
    .name = "tune",
    .help =
        "find parameters of the kernels that the configuration runs, and keep them for later runs "
        "(docs/tuning.md); nothing else is measured"};
static const struct cld_option seconds = {
    .name = "seconds",
    .value = "N",
    .number = true,
    .help = "with --tune: begin no candidate after so long (default 600)"};
static const struct cld_option only = {.name = "only",
                                       .value = "KERNEL",
                                       .repeats = true,
                                       .help = "with --tune: this family of kernels and no other "
                                               "(docs/tuning.md); may be given several times"};
static const struct cld_option tuning = {
    .name = "tuning",
    .value = "T",
    .help = "rows of tuned parameters to check: auto, off (default) or a table, as runtime.tuning"};
static const struct cld_option compare = {
    .name = "compare",
    .value = "FILE",
    .help =
        "mark results that differ from those of the file (json or jsonl) by more than the spread"};
static const struct cld_option fail_on_regression = {
    .name = "fail-on-regression",
    .help = "with --compare: end with 1 if a result is slower or fails"};
static const struct cld_option plot = {
    .name = "plot", .value = "FILE.svg", .help = "draw the sweep, and FILE-roofline.svg"};
static const struct cld_option layout = {
    .name = "format",
    .value = "F",
    .names = NAMES{"hf", "speculators", NULL},
    .help = "layout of the directory (default hf, the published one)"};
static const struct cld_option runtime = {
    .name = "runtime",
    .value = "R",
    .names = NAMES{"all", "sglang", "vllm", NULL},
    .help = "the programs that will serve it; all (default) refuses what any of them would serve "
            "otherwise than it was trained"};
static const struct cld_option target = {
    .name = "target",
    .value = "DIR",
    .help = "the target's directory, where it is no longer that of the run"};
static const struct cld_option ema = {
    .name = "ema", .help = "the moving mean of the weights (train.ema) in place of the weights"};
static const struct cld_option layers = {
    .name = "layers",
    .value = "LIST",
    .needed = true,
    .help =
        "layers of the files' states as their writer counts them, one more than target.taps each"};
static const struct cld_option heldout = {
    .name = "heldout", .help = "the files are of the rows of data.heldout, not of data.train"};
static const struct cld_option unchecked = {
    .name = "unchecked",
    .help = "do not run the target to see that the states are those of the layers"};
static const struct cld_option markdown = {.name = "markdown",
                                           .help = "print the page of docs/ on the topic"};

const struct cld_exit_code cld_exit_codes[] = {
    {CLD_OK, "done"},
    {CLD_E_CHECK, "a check or a comparison failed"},
    {CLD_E_USAGE, "the command line or the configuration is wrong"},
    {CLD_E_INPUT, "an input file is missing, malformed or of the wrong shape"},
    {CLD_E_DEVICE, "an OpenCL device, a build or a launch failed"},
    {CLD_E_MEMORY, "does not fit in the memory of a device or of the host"},
    {CLD_E_NUMERIC, "numbers are not finite, or wrong"},
    {CLD_E_IO, "writing failed"},
    {CLD_E_INTERNAL, "a mistake in cldraft itself; please report it"},
    {CLD_E_INTERRUPTED, "stopped by a signal, after a checkpoint was written"},
    {.meaning = NULL},
};

static const struct cld_option no_probe = {
    .name = "no-probe",
    .help = "run nothing on a device: show what it reports and the verdicts that are stored"};

const char *const cld_help_topics[] = {"config", "commands", "exit-codes", NULL};

const struct cld_command cld_commands[] = {
    [CLD_CMD_DEVICES] =
        {"devices",
         "",
         0,
         0,
         "show OpenCL platforms and devices",
         "Limits, extensions and what was found to work, as a tree. Runs small "
         "probes on each device and stores their verdicts for later runs and plans.",
         {&json, &no_probe}},
    [CLD_CMD_PLAN] = {"plan",
                      "CONFIG",
                      1,
                      1,
                      "show the memory that a run needs",
                      "Every buffer of each worker, their sum and the budget. Reads no weights. "
                      "Ends with 0 if the run fits, with 5 and what would fit if not.",
                      {&set}},
    [CLD_CMD_TRAIN] = {"train",
                       "CONFIG",
                       1,
                       1,
                       "train a drafter",
                       "SIGINT or SIGTERM once: finish the step, write a checkpoint, end with 130. "
                       "Twice: end at once.",
                       {&set, &resume, &print_config}},
    [CLD_CMD_STATUS] =
        {"status",
         "RUN_DIR",
         1,
         1,
         "show how a run is doing",
         "The run's state and step, and what each worker does, its memory and how busy "
         "it is. Works while the run lives and after it ended, and says which.",
         {&watch}},
    [CLD_CMD_REPORT] =
        {"report",
         "RUN_DIR...",
         1,
         CLD_REPORT_MOST_RUNS,
         "draw pictures of a run, or of several",
         "Writes one HTML file that needs nothing else and prints its path: curves, "
         "workers, events and the configuration. Several runs are drawn over each other, "
         "with what their configurations differ in. Works while a run lives and after "
         "it ended or died.",
         {&page}},
    [CLD_CMD_EVAL] =
        {"eval",
         "CONFIG",
         1,
         1,
         "evaluate a drafter on held-out rows",
         "Teacher-forced: loss, accuracy and accepted length. By decoding (eval.decode_rows): "
         "tokens per cycle of drafting and verifying, and tokens a second with the drafter "
         "and without. Definitions are printed with the figures.",
         {&drafter, &json, &set}},
    [CLD_CMD_GENERATE] =
        {"generate",
         "CONFIG PROMPTS.jsonl OUT.jsonl",
         3,
         3,
         "let the target answer prompts, for training",
         "Every prompt is answered, skipped or an error, and counted. Call it again "
         "to go on with an output that is not complete. See docs/data.md.",
         {&set}},
    [CLD_CMD_EXPORT] =
        {"export",
         "CHECKPOINT OUT_DIR",
         2,
         2,
         "write a checkpoint as a Hugging Face drafter directory",
         "Writes config.json, weights, a card and the logits of one block, then reads "
         "them again and compares: 1 if they differ. Refuses, with 2, what a serving "
         "program would compute otherwise than it was trained.",
         {&layout, &runtime, &ema, &target, &device, &precision}},
    [CLD_CMD_IMPORT] =
        {"import-features",
         "CONFIG DIR",
         2,
         2,
         "take hidden states of other programs as stored features",
         "DIR/hs_I.safetensors, as speculators and vLLM write them, belongs to line I of "
         "the rows. Tokens, types and shapes are compared, and the states of one row with "
         "the target's own. See docs/features.md.",
         {&layers, &heldout, &unchecked, &device, &set}},
    [CLD_CMD_CHECK_KERNELS] = {"check-kernels",
                               "[FILE...]",
                               0,
                               ANY,
                               "compare every kernel with a double-precision reference",
                               "FILEs are golden files, for --summary alone.",
                               {&device, &both, &op, &only_case, &limit, &list, &seed, &all_kernels,
                                &mode, &program, &modules, &tuning, &all, &report, &golden,
                                &update_golden, &summary}},
    [CLD_CMD_CHECK_CASE] = {"check-case",
                            "FILE...",
                            1,
                            ANY,
                            "run golden drafter cases",
                            "Each case runs whole and again row by row, with gradients added up.",
                            {&device, &precision, &attention}},
    [CLD_CMD_CHECK_TARGET] = {"check-target",
                              "DIR...",
                              1,
                              ANY,
                              "run golden target cases",
                              "",
                              {&device, &precision, &attention}},
    [CLD_CMD_CHECK_TOKENIZER] = {"check-tokenizer",
                                 "DIR FILE.jsonl...",
                                 2,
                                 ANY,
                                 "run golden lines of a tokenizer",
                                 "",
                                 {NULL}},
    [CLD_CMD_BENCH] =
        {"bench",
         "CONFIG",
         1,
         1,
         "measure operations and training steps",
         "Section [bench] of the configuration says what, section [sweep] at which points. "
         "SIGINT or SIGTERM once: write what there is, end with 130. See docs/sweeps.md.",
         {&format, &device, &journal, &compare, &fail_on_regression, &plot, &tune, &seconds, &only,
          &set}},
    [CLD_CMD_SPIRV] = {"spirv",
                       "[CONFIG...]",
                       0,
                       ANY,
                       "make SPIR-V modules of kernels",
                       "Finds the kernel variants that training runs of the configurations ask "
                       "for, with the kernels for CPUs and those for GPUs, and compiles each. "
                       "Reads the target; computes nothing.",
                       {&checks, &op, &kernels, &variants, &out, &ptx, &set}},
    [CLD_CMD_COMPLETION] =
        {"completion",
         "SHELL",
         1,
         1,
         "print what completes commands in a shell",
         "For bash, zsh or fish: commands, options, their values, and the keys that "
         "--set takes. In bash: source <(cldraft completion bash).",
         {NULL}},
    [CLD_CMD_MAN] = {"man",
                     "",
                     0,
                     0,
                     "print the manual page",
                     "In roff: cldraft man | man -l -. An installed cldraft has it in its place.",
                     {NULL}},
    [CLD_CMD_HELP] = {"help",
                      "[TOPIC]",
                      0,
                      1,
                      "explain a topic",
                      "Topics: config (all keys of the configuration), commands, exit-codes, or "
                      "the name of a command.",
                      {&markdown}},
    {.name = NULL},
};
