#include "config/config_table.h"

#include <float.h>
#include <string.h>

#include "base/old_names.h"

/* The name, place and type of a row, from the field it is bound to. The _Generic selection compiles
 * only if the field has the C type that the row's key type stands for. */
#define ROW(sec, key, key_type, c_type)                                                            \
    .section = #sec, .name = #key, .type = key_type,                                               \
    .offset = offsetof(struct cld_config, sec.key) +                                               \
              0 * sizeof(_Generic(((struct cld_config *)0)->sec.key, c_type : 0))
#define BOOL(sec, key)   ROW(sec, key, CLD_KEY_BOOL, bool)
#define INT(sec, key)    ROW(sec, key, CLD_KEY_INT, int64_t)
#define SIZE(sec, key)   ROW(sec, key, CLD_KEY_SIZE, size_t)
#define REAL(sec, key)   ROW(sec, key, CLD_KEY_REAL, double)
#define TEXT(sec, key)   ROW(sec, key, CLD_KEY_TEXT, char *)
#define PATH(sec, key)   ROW(sec, key, CLD_KEY_PATH, char *)
#define ENUM(sec, key)   ROW(sec, key, CLD_KEY_ENUM, unsigned)
#define SIZES(sec, key)  ROW(sec, key, CLD_KEY_SIZES, struct cld_size_list)
#define REALS(sec, key)  ROW(sec, key, CLD_KEY_REALS, struct cld_real_list)
#define TEXTS(sec, key)  ROW(sec, key, CLD_KEY_TEXTS, struct cld_text_list)
#define ENUMS(sec, key)  ROW(sec, key, CLD_KEY_ENUMS, struct cld_enum_list)
#define SHAPES(sec, key) ROW(sec, key, CLD_KEY_SHAPES, struct cld_shape_list)

#define FREE     .change = CLD_KEY_FREE
#define PLAN     (1u << CLD_CONFIG_PLAN)
#define TRAIN    (1u << CLD_CONFIG_TRAIN)
#define EVAL     (1u << CLD_CONFIG_EVAL)
#define GENERATE (1u << CLD_CONFIG_GENERATE)
#define MODEL    CLD_NEEDED_BENCH_MODEL
#define STEP     CLD_NEEDED_BENCH_STEP
#define OVERRIDE(op)                                                                               \
    {                                                                                              \
        PATH(runtime, override.op),                                                                \
            .word = "none", .default_text = "none", FREE,                                          \
            .help = "Your SPIR-V module for the kernels of cl/" #op                                \
                    ".cl. It must pass the checks of the operation before it is used."             \
    }
#define NAMES (const char *const[])

/* Whole numbers up to here are exact in a double and in every JSON reader. */
#define EXACT 9007199254740991.0
#define MANY  1e9 /* steps, rows: more is a typing error */

/* Rows without a change mark are CLD_KEY_FIXED (the enum's zero). */
const struct cld_config_key cld_config_keys[] = {
    {PATH(run, dir), FREE, .needed = TRAIN,
     .help = "Directory of the run: resolved configuration, metrics, log and checkpoints. Created "
             "if missing."},
    {INT(run, seed), .default_text = "42", .max = EXACT,
     .help = "Seed of all random numbers: order of rows, anchors, initial weights."},

    {PATH(data, train), .word = "none", .default_text = "none",
     .help =
         "Training rows, JSONL: messages, conversations, or input_ids with loss_mask. One file, "
         "a list, or patterns such as rows-*.jsonl."},
    {PATH(data, heldout), .word = "none", .default_text = "none", FREE, .needed = EVAL,
     .help = "Held-out rows in the same format, for evaluation. They must not be in data.train."},
    {ENUM(data, template), .default_text = "none",
     .names = NAMES{"none", "chatml", "qwen3", "llama3", NULL},
     .help = "Chat template that turns chat rows into text. Use the one that the target was "
             "trained with. Rows of ready token ids need none."},
    {SIZE(data, max_length), .min = 2, .max = 1 << 20, .unit = "tokens",
     .needed = PLAN | TRAIN | EVAL | GENERATE | MODEL,
     .help = "Tokens of a row. Longer documents are cut, shorter ones are padded or packed."},
    {BOOL(data, packing), .default_text = "no",
     .help = "Put several documents into one row. They do not attend to each other. Saves padding "
             "if documents are short."},
    {ENUM(data, bad_row), .default_text = "skip", .names = NAMES{"skip", "fail", NULL},
     .help = "What happens at a row that cannot be read. skip: it is counted and reported. fail: "
             "the run stops."},
    {TEXTS(data, ignore_keys), .word = "none", .default_text = "none", .min_n = 1, .max_n = 64,
     .help = "Keys of rows and messages that are refused otherwise, and that mean nothing in these "
             "data: they are ignored."},
    {SIZES(data, synthetic), .word = "none", .default_text = "none", .min = 2, .max = MANY,
     .min_n = 2, .max_n = 2,
     .help = "ROWS,LENGTH: random rows of token ids instead of data.train, to try shapes and speed "
             "without data."},

    {PATH(target, dir), .needed = PLAN | TRAIN | EVAL | GENERATE | MODEL,
     .help = "Hugging Face directory of the frozen target: config.json, safetensors, tokenizer."},
    {SIZES(target, taps), .word = "auto", .default_text = "auto", .min = 0, .max = 1023, .min_n = 1,
     .max_n = 32,
     .help = "Target layers whose outputs the drafter reads, counted from 0, in ascending order. "
             "auto: as many as the drafter has layers, evenly spaced from the second to the "
             "third-last layer."},
    {INT(target, random_weights), .word = "no", .default_text = "no", .max = EXACT,
     .help = "A seed: read only config.json and fill the target's weights with random numbers, to "
             "try shapes and speed without the weights. The trained drafter is useless."},

    {SIZE(checks, rows), .default_text = "3", .min = 0, .max = 1000, .unit = "rows", FREE,
     .help = "Training rows whose supervised text is written to the log before the first step. "
             "Read them once: training does not complain about a wrong mask."},
    {BOOL(checks, template), .default_text = "yes", FREE,
     .help = "Refuse a data.template that differs from the one in the target's directory. no: only "
             "warn."},
    {ENUM(checks, history), .default_text = "mask", .names = NAMES{"fail", "mask", "count", NULL},
     .help = "What happens to an answer that the template rewrites once a later turn follows it "
             "(qwen3 drops its thinking), so that the target never wrote this text. fail: the run "
             "stops. mask: the answer is not supervised. count: it is supervised and counted."},
    {BOOL(checks, supervision), .default_text = "yes", FREE,
     .help = "Refuse data in which every token is supervised, or whose supervised spans end one "
             "token before or after the end token of the answers (a mask that is shifted by one). "
             "no: only warn."},
    {BOOL(checks, mask_token), .default_text = "yes", FREE,
     .help = "Refuse a drafter.mask_token that is a pad, eos or bos token in any of the target's "
             "files, or that training rows contain. no: only warn."},
    {BOOL(checks, vocabulary), .default_text = "yes", FREE,
     .help = "Refuse a target whose config.json, embedding, head and tokenizer disagree about the "
             "vocabulary, or that has a head of its own although config.json ties it to the "
             "embedding. no: only warn."},

    {ENUM(features, mode), .default_text = "online", FREE,
     .names = NAMES{"online", "offline", "hybrid", NULL},
     .help =
         "Where the target's features come from. online: the target runs at every step. offline: "
         "they are read from features.dir; of the target only embedding and head are needed. "
         "hybrid: rows in features.dir are read, other rows are computed and stored there."},
    {PATH(features, dir), .word = "none", .default_text = "none", FREE,
     .help = "Directory of stored features, one record a row. They are valid only for the target, "
             "taps, tokenizer and precision that made them."},
    {REAL(features, limit_gib), .word = "none", .default_text = "none", .min = 0, .max = 1 << 24,
     .above_min = true, .unit = "GiB", FREE,
     .help = "Maximum size of features.dir in mode hybrid. Rows beyond it are computed each time "
             "they are used."},

    {SIZE(drafter, layers), .default_text = "5", .min = 1, .max = 32,
     .help = "Decoder layers of the drafter. With more layers it predicts better and drafts more "
             "slowly."},
    {SIZE(drafter, heads), .word = "target", .default_text = "target", .min = 1, .max = 1024,
     .help = "Query heads. target: as many as the target has."},
    {SIZE(drafter, kv_heads), .word = "target", .default_text = "target", .min = 1, .max = 1024,
     .help = "Key and value heads; must divide drafter.heads."},
    {SIZE(drafter, head_dim), .word = "target", .default_text = "target", .min = 8, .max = 256,
     .help = "Width of a head, a multiple of 8."},
    {SIZE(drafter, intermediate_size), .word = "target", .default_text = "target", .min = 1,
     .max = 1 << 20, .help = "Width of the MLP."},
    {REAL(drafter, rope_theta), .word = "target", .default_text = "target", .min = 1, .max = 1e12,
     .help = "Base of the rotary position embedding."},
    {SIZE(drafter, block_size), .default_text = "16", .min = 2, .max = 64, .unit = "tokens",
     .help = "Tokens of a block: one known token and block_size - 1 drafted ones."},
    {TEXT(drafter, mask_token), .needed = PLAN | TRAIN | EVAL | MODEL,
     .help = "Token that fills the positions to be drafted: its id or its text. Choose a token of "
             "the target's vocabulary that its data never contain, not the padding token."},
    {ENUM(drafter, layout), .default_text = "dflash",
     .names = NAMES{"dflash", "anchor-first", NULL},
     .help = "What row o of a block predicts. dflash: the token at its own position; the anchor's "
             "row predicts nothing. anchor-first: the next token, also in the anchor's row. The "
             "weights of both look alike, but each must be served with its own layout."},
    {ENUMS(drafter, layer_types), .default_text = "full_attention", .min_n = 1, .max_n = 32,
     .names = NAMES{"full_attention", "sliding_attention", NULL},
     .help = "One type for all layers, or one for each."},
    {SIZE(drafter, sliding_window), .word = "none", .default_text = "none", .min = 2,
     .max = 1 << 20, .unit = "tokens",
     .help = "Window of sliding layers, the query's own position included; at least "
             "drafter.block_size."},
    {BOOL(drafter, sliding_causal), .default_text = "yes",
     .help = "Whether sliding layers see only earlier positions within a block. Serve the drafter "
             "with the same setting."},
    {PATH(drafter, init), .word = "none", .default_text = "none",
     .help = "Drafter directory, run or checkpoint whose weights the training starts from."},
    {REAL(drafter, init_std), .default_text = "0.02", .min = 0, .max = 1, .above_min = true,
     .help = "Standard deviation of the initial matrices. Norm weights start at one."},

    {SIZE(train, steps), .min = 1, .max = MANY, .unit = "optimizer steps", .change = CLD_KEY_GROWS,
     .needed = TRAIN, .help = "Optimizer steps of the training and of the learning-rate schedule."},
    {SIZE(train, batch_rows), .min = 1, .max = 1 << 20, .unit = "rows", .needed = TRAIN | STEP,
     .help = "Rows of one optimizer step, over all drafters and accumulation."},
    {SIZE(train, micro_rows), .default_text = "1", .min = 1, .max = 4096, .unit = "rows", FREE,
     .help = "Rows of one forward and backward pass on one drafter. micro_rows times the number of "
             "drafters must divide train.batch_rows. More rows need more memory; results differ "
             "only by rounding."},
    {SIZE(train, anchors), .default_text = "512", .min = 1, .max = 65536, .unit = "blocks",
     .help = "Maximum number of blocks that are trained at once in a document."},
    {REAL(train, learning_rate), .default_text = "6e-4", .min = 0, .max = 1, .above_min = true,
     .help = "Peak of the learning rate."},
    {ENUM(train, schedule), .default_text = "cosine",
     .names = NAMES{"cosine", "linear", "wsd", "constant", NULL},
     .help = "Shape of the learning rate after the warm-up. wsd stays at the peak and falls in the "
             "last steps."},
    {REAL(train, warmup), .default_text = "0.04", .min = 0, .max = 1, .unit = "of the steps",
     .help = "Share of the steps in which the learning rate rises."},
    {REAL(train, wsd_decay), .default_text = "0.2", .min = 0, .max = 1, .above_min = true,
     .unit = "of the steps", .help = "Share of the steps in which the wsd schedule falls."},
    {REAL(train, min_lr_ratio), .default_text = "0", .min = 0, .max = 1,
     .help = "Learning rate at the end, as a share of the peak."},
    {REAL(train, beta1), .default_text = "0.9", .min = 0, .max = 1, .below_max = true,
     .help = "AdamW: decay of the mean of gradients."},
    {REAL(train, beta2), .default_text = "0.95", .min = 0, .max = 1, .below_max = true,
     .help = "AdamW: decay of the mean of squared gradients."},
    {REAL(train, epsilon), .default_text = "1e-8", .min = 0, .max = 1, .above_min = true,
     .help = "AdamW: keeps the division finite."},
    {REAL(train, weight_decay), .default_text = "0", .min = 0, .max = 1,
     .help = "AdamW: decoupled weight decay of matrices. Norm weights have none."},
    {REAL(train, clip), .default_text = "1.0", .min = 0, .max = 1e6,
     .help = "Maximum global norm of the gradient; 0: no clipping."},
    {ENUM(train, objective), .default_text = "static",
     .names = NAMES{"static", "dpace", "soft", "variable-prefix", NULL},
     .help = "What the drafter learns (docs/algorithm.md). static: cross-entropy with weights by "
             "train.gamma. dpace: weights by the drafter's probabilities of the rows before and "
             "after. soft: the target's distribution; the target then runs to its last layer. "
             "variable-prefix: blocks that begin with known tokens."},
    {REAL(train, gamma), .default_text = "7", .min = 0, .max = 1e6, .unit = "positions",
     .help = "Weight of the k-th row with a loss: exp(-(k-1)/gamma), since later tokens only count "
             "if earlier ones are right. 0: equal weights. Usual values: 7 with block_size 16, 5 "
             "with 10, 4 with 8."},
    {REAL(train, dpace_alpha), .default_text = "0.5", .min = 0, .max = 1,
     .help =
         "dpace: share of a row, s = (1 - alpha) p + alpha, with p the probability of its label."},
    {REAL(train, soft_weight), .default_text = "1", .min = 0, .max = 1, .above_min = true,
     .help = "soft: share of the divergence from the target's distribution; the rest is "
             "cross-entropy with the label."},
    {REAL(train, soft_temperature), .default_text = "1", .min = 0.01, .max = 100,
     .help =
         "soft: temperature of both distributions. The divergence is multiplied by its square."},
    {REAL(train, ema), .word = "no", .default_text = "no", .min = 0, .max = 1, .below_max = true,
     .above_min = true,
     .help = "Decay of a moving average of the weights, for example 0.999. It is stored in fp32 "
             "beside the weights and in checkpoints as drafter-ema.safetensors. In the first steps "
             "the decay is (1 + step) / (10 + step) if that is smaller."},
    {BOOL(train, stop_at_gap), .default_text = "no",
     .help = "End the loss weights of a block at its first unsupervised token, in the loss and in "
             "the metrics."},
    {BOOL(train, recompute), .default_text = "no", FREE,
     .help = "Recompute activations in the backward pass instead of storing them: less memory, "
             "more time."},
    {SIZE(train, loss_chunk), .default_text = "32", .min = 1, .max = 65536, .unit = "blocks", FREE,
     .help =
         "Blocks whose logits exist at the same time. Fewer need less memory, more are faster."},
    {SIZE(train, checkpoint_every), .default_text = "1000", .min = 0, .max = MANY, .unit = "steps",
     FREE, .help = "Steps between checkpoints; 0: only one at the end."},
    {SIZE(train, keep), .default_text = "3", .min = 0, .max = MANY, .unit = "checkpoints", FREE,
     .help = "Number of newest checkpoints that stay, besides the best one; 0: all."},
    {SIZE(train, evaluate_every), .default_text = "1000", .min = 0, .max = MANY, .unit = "steps",
     FREE, .help = "Steps between evaluations on data.heldout; 0: only one at the end."},

    {ENUM(attention, backend), .default_text = "sparse", .names = NAMES{"sparse", "dense", NULL},
     FREE,
     .help = "sparse: computes only the tiles that a block sees. dense: computes all tiles, for "
             "comparison; its memory grows with the square of the length."},

    {REALS(memory, limit_gib), .word = "auto", .default_text = "auto", .min = 0, .max = 65536,
     .above_min = true, .min_n = 1, .max_n = 32, .unit = "GiB", FREE,
     .help = "Memory that cldraft may use: one number for every device, or one for each of "
             "devices.targets and then of devices.drafters. auto: what the device reports."},
    {REAL(memory, reserve_gib), .default_text = "0.5", .min = 0, .max = 65536, .unit = "GiB", FREE,
     .help = "Part of the memory that is left to the driver and to other programs."},
    {REAL(memory, max_buffer_gib), .word = "auto", .default_text = "auto", .min = 0, .max = 65536,
     .above_min = true, .unit = "GiB", FREE,
     .help = "Maximum size of one buffer. auto: what the device reports."},

    {TEXTS(devices, targets), .word = "auto", .default_text = "auto", .min_n = 1, .max_n = 64, FREE,
     .help =
         "Devices that run the target: numbers or names from 'cldraft devices', or cpu:I/N for "
         "part I of N of a CPU. Each entry is a worker with its own copy of the target; a device "
         "may be named more than once. auto: each drafter runs a target on its own device."},
    {TEXTS(devices, drafters), .word = "auto", .default_text = "auto", .min_n = 1, .max_n = 64,
     FREE,
     .help = "Devices that train the drafter, each on an equal part of train.batch_rows. They may "
             "also be targets. auto: the first GPU, or the first device if there is no GPU."},
    {SIZE(devices, ring_slots), .default_text = "2", .min = 1, .max = 16, .unit = "micro-batches",
     FREE,
     .help = "Micro-batches of features that each target worker may have ready for the drafters, "
             "in host memory."},

    {ENUM(runtime, program), .default_text = "auto",
     .names = NAMES{"auto", "source", "spirv", NULL}, FREE,
     .help =
         "What kernels are built from: OpenCL C, or SPIR-V modules made before (docs/spirv.md). "
         "auto: OpenCL C, or a module if that does not build; the log reports it."},
    {ENUM(runtime, kernels), .default_text = "auto", .names = NAMES{"auto", "cpu", "gpu", NULL},
     FREE,
     .help = "Kernels that devices run: those for CPUs or those for GPUs. auto: those that fit the "
             "device. Both give correct results on every device; GPU kernels are about twenty "
             "times slower on a CPU."},
    {ENUM(runtime, precision), .default_text = "bf16", .names = NAMES{"fp32", "bf16", NULL},
     .help = "Storage of weights and activations. Arithmetic, gradients and optimizer are fp32."},
    {PATH(runtime, cache_dir), .word = "auto", .default_text = "auto", FREE,
     .help = "Directory of built programs for later starts, at most 512 MiB. It must belong to the "
             "user and be writable only by the user. auto: $XDG_CACHE_HOME/cldraft or "
             "~/.cache/cldraft; not used for drivers with the quirk dear-binary (PoCL). off: no "
             "cache."},
    {PATH(runtime, modules), .word = "auto", .default_text = "auto", FREE,
     .help = "Directory of SPIR-V modules from 'cldraft spirv'. auto: the directory spirv beside "
             "the program, where a build puts them."},
    {PATH(runtime, tuning), .default_text = "auto", FREE,
     .help =
         "Table of tuned kernel parameters. auto: the table of 'cldraft bench --tune' in "
         "runtime.cache_dir, else the table that cldraft has for the device, else the defaults. "
         "off: the defaults. A file: this table; it is an error if it cannot be used."},
    OVERRIDE(rmsnorm),
    OVERRIDE(qknorm_rope),
    OVERRIDE(swiglu),
    OVERRIDE(add),
    OVERRIDE(gather),
    OVERRIDE(fill),
    OVERRIDE(cross_entropy),
    OVERRIDE(sum_squares),
    OVERRIDE(adamw),

    {ENUM(log, level), .default_text = "info",
     .names = NAMES{"debug", "info", "warning", "error", NULL}, FREE,
     .help = "Least important messages that are shown. -v and -q on the command line win."},
    {SIZE(log, every), .default_text = "10", .min = 1, .max = MANY, .unit = "steps", FREE,
     .help = "Steps between progress lines if stderr is not a terminal."},
    {BOOL(log, tensorboard), .default_text = "no", FREE,
     .help = "Write the numbers of metrics.jsonl also into a TensorBoard event file in run.dir. A "
             "resumed run starts another file."},

    {SIZE(eval, rows), .default_text = "0", .min = 0, .max = MANY, .unit = "rows", FREE,
     .help = "Number of held-out rows that an evaluation uses, from the first; 0: all."},
    {BOOL(eval, ema), .default_text = "no",
     .help = "Evaluate the moving average of the weights (train.ema) instead of the weights. The "
             "best checkpoint is then the one with the best average."},
    {TEXTS(eval, buckets), .word = "heldout", .default_text = "heldout", .min_n = 1, .max_n = 32,
     FREE,
     .help = "NAME=FILE, ...: held-out files that 'cldraft eval' reports separately under their "
             "names; a file without a name belongs to the bucket before it. heldout: only "
             "data.heldout, under the name of its file."},
    {SIZE(eval, decode_rows), .default_text = "32", .min = 0, .max = MANY, .unit = "rows", FREE,
     .help = "Rows of each bucket, from the first, whose last answer is decoded from its prompt, "
             "with the drafter and without it; 0: none."},
    {SIZE(eval, decode_every), .default_text = "0", .min = 0, .max = MANY, .unit = "steps", FREE,
     .help = "Training steps between decodings of eval.decode_rows rows of data.heldout with the "
             "drafter. The best checkpoint is then the one that decodes best. 0: never. Needs a "
             "second target on the first drafter's device."},
    {SIZE(eval, new_tokens), .default_text = "256", .min = 1, .max = 1 << 20, .unit = "tokens",
     FREE, .help = "Maximum number of tokens of a decoded answer. It also ends at an end token."},
    {REAL(eval, temperature), .default_text = "0", .min = 0, .max = 100, FREE,
     .help = "Temperature of the target's choice of tokens; 0: always the most likely one. The "
             "drafter always proposes its most likely token."},
    {REAL(eval, top_p), .default_text = "1", .min = 0, .max = 1, .above_min = true, FREE,
     .help =
         "The target chooses among the most likely tokens that together have this probability."},
    {BOOL(eval, by_block), .default_text = "no", FREE,
     .help = "Decode a third time with the target alone, in passes of a whole block that give one "
             "token each. The texts must equal those of decoding with the drafter. Slow."},
    {SIZE(generate, batch_size), .default_text = "8", .min = 1, .max = 1024, .unit = "texts", FREE,
     .help = "Prompts that 'cldraft generate' answers at the same time. Each has a KV cache of "
             "data.max_length + generate.new_tokens tokens."},
    {SIZE(generate, new_tokens), .default_text = "1024", .min = 1, .max = 1 << 20, .unit = "tokens",
     FREE, .help = "Maximum number of tokens of an answer. It also ends at an end token."},
    {REAL(generate, temperature), .default_text = "0", .min = 0, .max = 100, FREE,
     .help = "Temperature of the target's choice of tokens; 0: always the most likely one."},
    {REAL(generate, top_p), .default_text = "1", .min = 0, .max = 1, .above_min = true, FREE,
     .help =
         "The target chooses among the most likely tokens that together have this probability."},
    {ENUM(generate, thinking), .default_text = "auto", .names = NAMES{"auto", "on", "off", NULL},
     FREE,
     .help = "Whether a prompt asks for thinking. auto: as the template by itself, which for qwen3 "
             "is on. off: an empty think block stands where the answer begins. enable_thinking of "
             "a prompt has precedence."},

    {ENUMS(bench, what), .default_text = "gemm", .min_n = 1, .max_n = CLD_N_BENCH_WHAT,
     .names = NAMES{"gemm", "attention", "loss", "elementwise", "target", "step", "pipeline",
                    "transfer", "build", NULL},
     FREE,
     .help = "What is measured: single operations (gemm, attention, loss, elementwise), the "
             "target's forward pass, training steps of one worker (step), training steps of all "
             "workers of [devices] (pipeline), copies between host and device and through the ring "
             "(transfer), or the time to build kernels (build). All but gemm and transfer use the "
             "shapes of the configured models and micro-batch."},
    {SHAPES(bench, shapes), .default_text = "512x512x512,1024x1024x1024", .min = 1, .max = 1 << 20,
     .min_n = 1, .max_n = 32, FREE,
     .help = "MxNxK of the matrix products that gemm measures: the result has M rows and N "
             "columns, K is summed. Each runs as y = x W^T, dx = dy W and dW = dy^T x, or as one "
             "of them: NT:MxNxK, NN:MxNxK, TN:MxNxK."},
    {ENUMS(bench, gemm), .default_text = "auto", .min_n = 1, .max_n = 3,
     .names = NAMES{"auto", "portable", "clblast", "sm80", "sm90a", NULL}, FREE,
     .help = "GEMM back-ends that gemm measures. clblast needs fp32. sm80 and sm90a use NVIDIA's "
             "tensor cores and need bf16."},
    {ENUMS(bench, storage), .word = "runtime", .default_text = "runtime", .min_n = 1, .max_n = 2,
     .names = NAMES{"fp32", "bf16", NULL}, FREE,
     .help = "Storage in which operations are measured. runtime: that of runtime.precision, which "
             "whole steps always use."},
    {BOOL(bench, target), .default_text = "yes", FREE,
     .help = "Whether pipeline runs the target in its steps. no: random features are made once, "
             "and devices.targets must be empty."},
    {SIZE(bench, repeats), .default_text = "5", .min = 1, .max = 10000, FREE,
     .help = "Number of measured repeats. The median is reported."},
    {SIZE(bench, warmup), .default_text = "1", .min = 1, .max = 10000, FREE,
     .help = "Repeats before the measured ones. The first one builds kernels."},
    {REAL(bench, min_ms), .default_text = "20", .min = 0, .max = 60000, .unit = "ms", FREE,
     .help = "Minimum duration of a measured repeat. A shorter operation is enqueued several times "
             "in a row, and the time is divided."},
    {REAL(bench, limit_s), .word = "none", .default_text = "none", .min = 0, .max = 1e6,
     .above_min = true, .unit = "s", FREE,
     .help = "No repeat of one operation or step starts after this time. The record has the number "
             "of repeats."},
    {SIZE(bench, transfer_kib), .default_text = "65536", .min = 1, .max = 1 << 26, .unit = "KiB",
     FREE, .help = "Size of the block that transfer copies."},
    {BOOL(bench, roofline), .default_text = "yes", FREE,
     .help = "Measure the device's copy rate and best GEMM rate first, and report each result as a "
             "share of the limit that they give."},

    {TEXT(sweep, zip), .word = "none", .default_text = "none", FREE,
     .help =
         "Keys that move together: the n-th value of one goes with the n-th value of the others. "
         "KEY,KEY with bars between groups, or all. Other keys are combined in every way."},
    {SIZE(sweep, max_points), .default_text = "1000", .min = 1, .max = 1000000, .unit = "points",
     FREE, .help = "A sweep of more points is refused."},
    {REAL(sweep, limit_s), .word = "none", .default_text = "none", .min = 0, .max = 1e9,
     .above_min = true, .unit = "s", FREE,
     .help = "No point starts after this time. With --out the same command continues later."},
    {TEXT(sweep, x), .word = "auto", .default_text = "auto", FREE,
     .help = "The swept key along the x axis of --plot. auto: the one with the most numbers."},
    {.section = NULL},
};

const size_t cld_config_n_keys = sizeof cld_config_keys / sizeof cld_config_keys[0] - 1;
_Static_assert(sizeof cld_config_keys / sizeof cld_config_keys[0] <= CLD_CONFIG_MAX_KEYS,
               "struct cld_config has an origin for every key");

static const struct cld_config_key *find(const char *section, const char *name)
{
    for (const struct cld_config_key *k = cld_config_keys; k->section; k++)
        if (!strcmp(k->section, section) && !strcmp(k->name, name))
            return k;
    return NULL;
}

const struct cld_config_key *cld_config_key_of(const char *section, const char *name)
{
    char now[CLD_NAME_BYTES];
    const struct cld_config_key *k = find(section, name);
    if (!k && cld_old_name(CLD_NAME_KEY, section, name, now))
        k = find(section, now);
    return k;
}

const struct cld_config_key *cld_config_key_named(const char *name)
{
    char section[CLD_NAME_BYTES];
    const char *dot = strchr(name, '.');
    if (!dot || (size_t)(dot - name) >= sizeof section)
        return NULL;
    memcpy(section, name, (size_t)(dot - name));
    section[dot - name] = 0;
    return cld_config_key_of(section, dot + 1);
}

const char *cld_config_name_now(const char *name, char *to, size_t n)
{
    const struct cld_config_key *key = cld_config_key_named(name);
    if (key)
        snprintf(to, n, "%s.%s", key->section, key->name);
    else
        snprintf(to, n, "%s", name);
    return to;
}

const char *cld_config_unit(const char *name)
{
    const struct cld_config_key *key = cld_config_key_named(name);
    return key && key->unit ? key->unit : "";
}

const char *cld_config_value_name(const char *name, int i)
{
    const struct cld_config_key *key = cld_config_key_named(name);
    return key && key->names ? key->names[i] : "";
}

const char *cld_config_section_help(const char *section)
{
    static const char *const help[][2] = {
        {"run", "Directory and seed of a run."},
        {"data", "Training rows and held-out rows."},
        {"target", "The frozen model whose tokens the drafter predicts."},
        {"checks", "Checks of data and target before the first step. A check that is set to no "
                   "still runs, but a failure is only a warning."},
        {"features", "The target's features, stored on disk."},
        {"drafter", "Shape and initial weights of the model that is trained."},
        {"train", "Training loop, optimizer and loss."},
        {"attention", "The drafter's attention."},
        {"memory", "Limits that the memory plan must fit."},
        {"devices", "Which devices run the target and which train the drafter. A device is named "
                    "by its number, or by a part of its name or of its platform's name."},
        {"runtime", "Kernels, programs and number formats."},
        {"log", "Messages while cldraft works."},
        {"eval", "Evaluation on held-out rows."},
        {"generate", "Answers of the target that 'cldraft generate' writes."},
        {"bench", "What 'cldraft bench' measures."},
        {"sweep", "Several points for 'cldraft bench': besides these keys, 'SECTION.KEY = VALUES' "
                  "for any key of another section but [log]. VALUES are numbers or names with "
                  "commas between them, or ranges such as 1024..8192*2 and 1..9+2. If a value is "
                  "itself a list, bars separate the values: 1,3,4 | 0,2,5."},
    };
    for (size_t i = 0; i < sizeof help / sizeof help[0]; i++)
        if (!strcmp(help[i][0], section))
            return help[i][1];
    return NULL;
}
