#include "cli/args_table.h"

#include "report/report.h"

#define NAMES (const char *const[])
#define ANY   (size_t) - 1

static const struct cld_option help = {
    .name = "help", .letter = 'h', .help = "print help; after a command, the help of that command"};
static const struct cld_option version = {.name = "version", .help = "print the version"};
static const struct cld_option verbose = {
    .name = "verbose", .letter = 'v', .help = "print more messages on stderr"};
static const struct cld_option quiet = {
    .name = "quiet", .letter = 'q', .help = "print only warnings and errors on stderr"};

const struct cld_option *const cld_global_options[] = {&help, &version, &verbose, &quiet, NULL};

static const struct cld_option json = {.name = "json", .help = "print JSON"};
static const struct cld_option set = {
    .name = "set",
    .value = "S.K=V",
    .repeats = true,
    .help = "set key K of section S. This overrides the file; the last --set of a key wins"};
static const struct cld_option resume = {
    .name = "resume",
    .value = "DIR",
    .help = "continue from a checkpoint, or from the newest checkpoint of a run directory"};
static const struct cld_option print_config = {
    .name = "print-config", .help = "print every value and where it comes from, then stop"};
static const struct cld_option watch = {
    .name = "watch", .help = "print again every two seconds until the run has ended"};
static const struct cld_option page = {.name = "out",
                                       .value = "FILE",
                                       .help = "file of the page (default: report.html in RUN_DIR; "
                                               "for several runs, in the current directory)"};
static const struct cld_option drafter = {.name = "drafter",
                                          .value = "DIR",
                                          .needed = true,
                                          .help =
                                              "the drafter: a checkpoint or an exported directory"};
static const struct cld_option device = {
    .name = "device",
    .value = "D",
    .help =
        "device number from 'cldraft devices', or a part of the name of the device or platform"};
static const struct cld_option precision = {
    .name = "precision",
    .value = "P",
    .names = NAMES{"fp32", "bf16", NULL},
    .help = "storage of weights and activations (default fp32)"};
static const struct cld_option both = {
    .name = "precision",
    .value = "P",
    .names = NAMES{"fp32", "bf16", NULL},
    .help = "storage of weights and activations (default: both, one after the other)"};
static const struct cld_option attention = {.name = "attention",
                                            .value = "A",
                                            .names = NAMES{"sparse", "dense", NULL},
                                            .help = "attention back-end (default sparse)"};
static const struct cld_option op = {
    .name = "op", .value = "O", .help = "only operations whose name contains O"};
static const struct cld_option program = {
    .name = "program",
    .value = "P",
    .names = NAMES{"auto", "source", "cached", "spirv", NULL},
    .help = "what kernels are built from, as runtime.program (default source). cached: from "
            "source, then from the binaries that this gave"};
static const struct cld_option kernels = {
    .name = "kernels",
    .value = "K",
    .names = NAMES{"cpu", "gpu", NULL},
    .help = "kernels for CPUs or for GPUs (default: both; each runs on any device)"};
static const struct cld_option all_kernels = {
    .name = "kernels",
    .value = "K",
    .names = NAMES{"cpu", "gpu", "both", NULL},
    .help = "kernels for CPUs, for GPUs, or both (default: both on a CPU; gpu on a GPU, where the "
            "others take minutes)"};
static const struct cld_option only_case = {
    .name = "case",
    .value = "NAME",
    .help = "run only the case of this name, as a failure prints it"};
static const struct cld_option mode = {
    .name = "mode",
    .value = "M",
    .names = NAMES{"check", "grad", "support", "perf", NULL},
    .help = "check (default): every case. grad: gradients against finite differences in more "
            "directions. support: one case of each operation, to see what the device supports. "
            "perf: the time of each operation at a moderate size, with the device's own kernels"};
static const struct cld_option all = {
    .name = "all",
    .help = "check every device of every platform, or only --device, from source, from cached "
            "binaries and from SPIR-V modules; print a table"};
static const struct cld_option report = {
    .name = "format",
    .value = "F",
    .names = NAMES{"table", "json", "junit", NULL},
    .help = "format of the results (default table; without --all one line a case)"};
static const struct cld_option golden = {.name = "golden",
                                         .value = "FILE",
                                         .help =
                                             "compare verdicts with those in the file: FIX, "
                                             "REGRESSION or DIFFERENCE. Only a regression fails"};
static const struct cld_option update_golden = {
    .name = "update-golden",
    .help = "write the verdicts into the golden file instead of comparing"};
static const struct cld_option limit = {
    .name = "limit",
    .value = "N",
    .number = true,
    .help = "skip cases whose tensors have more than N elements in total, for slow devices"};
static const struct cld_option summary = {
    .name = "summary", .help = "print docs/vendors.md for these golden files; run nothing"};
static const struct cld_option modules = {
    .name = "modules", .value = "DIR", .help = "directory of SPIR-V modules, as runtime.modules"};
static const struct cld_option out = {
    .name = "out",
    .value = "DIR",
    .help = "write the modules to this directory; without it, print the variants"};
static const struct cld_option checks = {
    .name = "checks",
    .help = "also the variants of check-kernels, for all operations or those of --op"};
static const struct cld_option variants = {
    .name = "variants",
    .value = "FILE",
    .help = "also the variants in a list that was printed before"};
static const struct cld_option ptx = {
    .name = "ptx", .help = "also write each module in the form for NVIDIA's driver"};
static const struct cld_option list = {
    .name = "list",
    .help = "print the operations with their error bounds and the reasons for them; run nothing"};
static const struct cld_option seed = {
    .name = "seed", .value = "N", .number = true, .help = "seed of the inputs"};
static const struct cld_option format = {.name = "format",
                                         .value = "F",
                                         .names = NAMES{"md", "csv", "json", "jsonl", "sql", NULL},
                                         .help = "format of the results (default md)"};
static const struct cld_option journal = {
    .name = "out",
    .value = "FILE",
    .help = "also append results to a file, one JSON object a line; results that it already has "
            "for this build, device and configuration are reused. With --tune: write the table to "
            "this file"};
static const struct cld_option tune = {
    .name = "tune",
    .help = "find the fastest parameters of the kernels that the configuration runs, and store "
            "them for later runs (docs/tuning.md); measure nothing else"};
static const struct cld_option seconds = {
    .name = "seconds",
    .value = "N",
    .number = true,
    .help = "with --tune: start no candidate after this time (default 600)"};
static const struct cld_option only = {.name = "only",
                                       .value = "KERNEL",
                                       .repeats = true,
                                       .help = "with --tune: tune only this kernel (docs/tuning.md "
                                               "lists them); may be given several times"};
static const struct cld_option tuning = {
    .name = "tuning",
    .value = "T",
    .help = "tuned parameters to check: auto, off (default) or a table, as runtime.tuning"};
static const struct cld_option compare = {.name = "compare",
                                          .value = "FILE",
                                          .help = "report results that differ from those in the "
                                                  "file (json or jsonl) by more than the spread"};
static const struct cld_option fail_on_regression = {
    .name = "fail-on-regression",
    .help = "with --compare: exit with 1 if a result is slower or fails"};
static const struct cld_option plot = {.name = "plot",
                                       .value = "FILE.svg",
                                       .help =
                                           "draw the sweep, and its roofline in FILE-roofline.svg"};
static const struct cld_option layout = {
    .name = "format",
    .value = "F",
    .names = NAMES{"hf", "speculators", NULL},
    .help = "layout of the directory (default hf, the published one)"};
static const struct cld_option runtime = {
    .name = "runtime",
    .value = "R",
    .names = NAMES{"all", "sglang", "vllm", NULL},
    .help = "programs that will serve the drafter. all (default): refuse what any of them would "
            "compute differently from the training"};
static const struct cld_option target = {
    .name = "target",
    .value = "DIR",
    .help = "directory of the target, if it has moved since the run"};
static const struct cld_option ema = {
    .name = "ema",
    .help = "export the moving average of the weights (train.ema) instead of the weights"};
static const struct cld_option layers = {.name = "layers",
                                         .value = "LIST",
                                         .needed = true,
                                         .help =
                                             "layers of the states as the program that wrote them "
                                             "counts: each is one more than its target.taps"};
static const struct cld_option heldout = {
    .name = "heldout",
    .help = "the files belong to the rows of data.heldout instead of data.train"};
static const struct cld_option unchecked = {
    .name = "unchecked",
    .help = "do not run the target to verify that the states come from these layers"};
static const struct cld_option markdown = {.name = "markdown",
                                           .help = "print the page of docs/ on the topic"};

const struct cld_exit_code cld_exit_codes[] = {
    {CLD_OK, "done"},
    {CLD_E_CHECK, "a check or a comparison failed"},
    {CLD_E_USAGE, "the command line or the configuration is wrong"},
    {CLD_E_INPUT, "an input file is missing, malformed or of the wrong shape"},
    {CLD_E_DEVICE, "an OpenCL device, a build or a launch failed"},
    {CLD_E_MEMORY, "the memory of a device or of the host is too small"},
    {CLD_E_NUMERIC, "numbers are not finite, or wrong"},
    {CLD_E_IO, "writing failed"},
    {CLD_E_INTERNAL, "a mistake in cldraft itself; please report it"},
    {CLD_E_INTERRUPTED, "stopped by a signal, after a checkpoint was written"},
    {.meaning = NULL},
};

static const struct cld_option no_probe = {
    .name = "no-probe",
    .help = "run nothing on the devices; show what they report and the stored verdicts"};

const char *const cld_help_topics[] = {"config", "commands", "exit-codes", NULL};

const struct cld_command cld_commands[] = {
    [CLD_CMD_DEVICES] =
        {"devices",
         "",
         0,
         0,
         "show OpenCL platforms and devices",
         "Prints limits, extensions and features that work, as a tree. Runs small probes on each "
         "device and stores their verdicts for later runs and plans.",
         {&json, &no_probe}},
    [CLD_CMD_PLAN] =
        {"plan",
         "CONFIG",
         1,
         1,
         "show the memory that a run needs",
         "Prints every buffer of each worker, the sums and the budgets. Reads no weights. Exits "
         "with 0 if the run fits, else with 5 and settings that would fit.",
         {&set}},
    [CLD_CMD_TRAIN] = {"train",
                       "CONFIG",
                       1,
                       1,
                       "train a drafter",
                       "SIGINT or SIGTERM once: finish the step, write a checkpoint, exit with "
                       "130. Again: exit at once; the last checkpoint stays valid.",
                       {&set, &resume, &print_config}},
    [CLD_CMD_STATUS] = {"status",
                        "RUN_DIR",
                        1,
                        1,
                        "show the state of a run",
                        "Prints the step of the run and, for each worker, its state, memory and "
                        "busy share. Works while the run is alive and after it has ended.",
                        {&watch}},
    [CLD_CMD_REPORT] = {"report",
                        "RUN_DIR...",
                        1,
                        CLD_REPORT_MOST_RUNS,
                        "write a page of charts about one run or several",
                        "Writes one self-contained HTML file and prints its path. It shows curves, "
                        "workers, events and the configuration. Several runs are drawn in the same "
                        "charts, with the differences of their configurations. Works while a run "
                        "is alive and after it has ended or died.",
                        {&page}},
    [CLD_CMD_EVAL] = {"eval",
                      "CONFIG",
                      1,
                      1,
                      "evaluate a drafter on held-out rows",
                      "Teacher-forced: loss, accuracy and accepted length. By decoding "
                      "(eval.decode_rows): tokens per cycle of drafting and verifying, and tokens "
                      "a second with the drafter and without it. The output defines each figure.",
                      {&drafter, &json, &set}},
    [CLD_CMD_GENERATE] = {"generate",
                          "CONFIG PROMPTS.jsonl OUT.jsonl",
                          3,
                          3,
                          "let the target answer prompts, as training data",
                          "Each prompt is answered, skipped or failed, and counted. If the output "
                          "is not complete, the same command continues it. See docs/data.md.",
                          {&set}},
    [CLD_CMD_EXPORT] =
        {"export",
         "CHECKPOINT OUT_DIR",
         2,
         2,
         "write a checkpoint as a Hugging Face drafter directory",
         "Writes config.json, weights, a model card and the logits of one block. Then reads them "
         "back and compares; exits with 1 if they differ. Refuses, with 2, a drafter that a "
         "serving program would compute differently from the training.",
         {&layout, &runtime, &ema, &target, &device, &precision}},
    [CLD_CMD_IMPORT] = {"import-features",
                        "CONFIG DIR",
                        2,
                        2,
                        "import hidden states of other programs as stored features",
                        "DIR/hs_I.safetensors, in the format of speculators and vLLM, belongs to "
                        "line I of the rows. Tokens, types and shapes are checked. The states of "
                        "one row are compared with the target's own. See docs/features.md.",
                        {&layers, &heldout, &unchecked, &device, &set}},
    [CLD_CMD_CHECK_KERNELS] = {"check-kernels",
                               "[FILE...]",
                               0,
                               ANY,
                               "compare every kernel with a double-precision reference",
                               "FILE is a golden file; only --summary reads it.",
                               {&device, &both, &op, &only_case, &limit, &list, &seed, &all_kernels,
                                &mode, &program, &modules, &tuning, &all, &report, &golden,
                                &update_golden, &summary}},
    [CLD_CMD_CHECK_CASE] =
        {"check-case",
         "FILE...",
         1,
         ANY,
         "run golden drafter cases",
         "Each case runs as a whole and then row by row with accumulated gradients.",
         {&device, &precision, &attention}},
    [CLD_CMD_CHECK_TARGET] = {"check-target",
                              "DIR...",
                              1,
                              ANY,
                              "run golden target cases",
                              "Compares hidden states and logits with the stored ones.",
                              {&device, &precision, &attention}},
    [CLD_CMD_CHECK_TOKENIZER] = {"check-tokenizer",
                                 "DIR FILE.jsonl...",
                                 2,
                                 ANY,
                                 "run golden tokenizer cases",
                                 "DIR has the tokenizer. Each line of a FILE has a text or a chat "
                                 "with the expected token ids.",
                                 {NULL}},
    [CLD_CMD_BENCH] = {"bench",
                       "CONFIG",
                       1,
                       1,
                       "measure operations and training steps",
                       "Section [bench] of the configuration names what is measured, section "
                       "[sweep] at which points. SIGINT or SIGTERM once: write the results so far, "
                       "exit with 130. See docs/sweeps.md.",
                       {&format, &device, &journal, &compare, &fail_on_regression, &plot, &tune,
                        &seconds, &only, &set}},
    [CLD_CMD_SPIRV] =
        {"spirv",
         "[CONFIG...]",
         0,
         ANY,
         "compile kernels to SPIR-V modules",
         "Finds the kernel variants that training runs of the configurations need, for CPUs and "
         "for GPUs, and compiles each. Reads the target; computes nothing.",
         {&checks, &op, &kernels, &variants, &out, &ptx, &set}},
    [CLD_CMD_COMPLETION] = {"completion",
                            "SHELL",
                            1,
                            1,
                            "print a completion script for a shell",
                            "For bash, zsh or fish. It completes commands, options, their values, "
                            "and the keys of --set. In bash: source <(cldraft completion bash).",
                            {NULL}},
    [CLD_CMD_MAN] = {"man",
                     "",
                     0,
                     0,
                     "print the manual page",
                     "The page is in roff: cldraft man | man -l -. Where cldraft is installed, "
                     "'man cldraft' shows it.",
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
