/* config.h - the configuration of a run: one INI file plus --set overrides, checked strictly and
 * bound to a plain struct, so that code reads cfg->train.learning_rate.
 *
 * One table (config_table.c) holds every key: type, range, default, help. From it come parsing,
 * `--print-config`, help and docs/config.md. Fields have the name of their key. Where a key may
 * stay open ("the target's", "none", "auto") the field holds the value that its comment gives.
 *
 * Paths in the file are relative to the current directory, not to the file.
 *
 * cld_config_load: main thread only (iniparser's error callback is global to the
 * process). A loaded configuration is read-only and may be read by any thread. */
#ifndef CLD_CONFIG_CONFIG_H
#define CLD_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"
#include "config/thinking.h"
#include "opencl/device.h"
#include "opencl/program_source.h"
#include "ops/attention_backend.h"

/* The order of the names in config_table.c is the order here (test_config checks it). */
enum cld_template {
    CLD_TEMPLATE_NONE,
    CLD_TEMPLATE_CHATML,
    CLD_TEMPLATE_QWEN3,
    CLD_TEMPLATE_LLAMA3
};
enum cld_features_mode { CLD_FEATURES_ONLINE, CLD_FEATURES_OFFLINE, CLD_FEATURES_HYBRID };
enum cld_bad_row { CLD_BAD_ROW_SKIP, CLD_BAD_ROW_FAIL };
enum cld_history { CLD_HISTORY_FAIL, CLD_HISTORY_MASK, CLD_HISTORY_COUNT };
enum cld_layer_type { CLD_LAYER_FULL, CLD_LAYER_SLIDING };
enum cld_objective {
    CLD_OBJECTIVE_STATIC,         /* weights fall with gamma */
    CLD_OBJECTIVE_DPACE,          /* weights by how sure the drafter is */
    CLD_OBJECTIVE_SOFT,           /* the target's distribution */
    CLD_OBJECTIVE_VARIABLE_PREFIX /* a part of each block is known */
};
enum cld_drafter_rows { CLD_LAYOUT_DFLASH, CLD_LAYOUT_ANCHOR_FIRST };
enum cld_schedule {
    CLD_SCHEDULE_COSINE,
    CLD_SCHEDULE_LINEAR,
    CLD_SCHEDULE_WSD,
    CLD_SCHEDULE_CONSTANT
};
enum cld_bench_what {
    CLD_BENCH_GEMM,
    CLD_BENCH_ATTENTION,
    CLD_BENCH_LOSS,
    CLD_BENCH_ELEMENTWISE,
    CLD_BENCH_TARGET,
    CLD_BENCH_STEP,
    CLD_BENCH_PIPELINE,
    CLD_BENCH_TRANSFER,
    CLD_BENCH_BUILD
};
enum { CLD_N_BENCH_WHAT = CLD_BENCH_BUILD + 1 };

/* Lists are owned by the configuration. */
struct cld_size_list {
    size_t n, *v;
};
struct cld_real_list {
    size_t n;
    double *v;
};
struct cld_text_list {
    size_t n;
    char **v;
};
struct cld_enum_list { /* values of the enum that the field's comment names */
    size_t n;
    int *v;
};
struct cld_shape { /* of a matrix product */
    size_t m, n, k;
    int kind; /* enum cld_gemm_kind, or -1: each */
};
struct cld_shape_list {
    size_t n;
    struct cld_shape *v;
};

/* A line of [sweep]: a key and the text of all its values (cld_config_expand). */
struct cld_swept_key {
    char *name, *text;
    int origin; /* as in struct cld_config */
};
struct cld_swept_list {
    size_t n, capacity;
    struct cld_swept_key *v;
};

#define CLD_CONFIG_MAX_KEYS 120

struct cld_config {
    struct {
        char *dir; /* NULL: not given */
        int64_t seed;
    } run;
    struct {
        char *train;   /* JSONL, files as in data/row_paths.h; NULL: none */
        char *heldout; /* too */
        enum cld_template template;
        size_t max_length; /* tokens of a row; 0: not given */
        bool packing;
        enum cld_bad_row bad_row;
        struct cld_text_list ignore_keys; /* of rows and messages */
        struct cld_size_list synthetic;   /* n == 0: none; else v[0] rows of v[1] tokens */
    } data;
    struct {
        char *dir;                 /* NULL: not given */
        struct cld_size_list taps; /* layer v means the output of decoder layer v; n == 0: auto */
        int64_t random_weights;    /* seed of generated weights; -1: no */
    } target;
    struct {         /* of data and target before a run; false: a failure is a warning */
        size_t rows; /* whose supervised spans are shown */
        bool template, supervision, mask_token, vocabulary;
        enum cld_history history;
    } checks;
    struct {
        enum cld_features_mode mode;
        char *dir;        /* of stored features; NULL: none */
        double limit_gib; /* of the store in mode hybrid; 0: none */
    } features;
    struct {
        size_t layers;
        size_t heads, kv_heads, head_dim, intermediate_size; /* 0: the target's */
        double rope_theta;                                   /* 0: the target's */
        size_t block_size;
        enum cld_drafter_rows layout;
        char *mask_token;                 /* id in decimal or the token's text; NULL: not given */
        struct cld_enum_list layer_types; /* enum cld_layer_type; one for all layers, or one each */
        size_t sliding_window;            /* positions, the query's own included; 0: none */
        bool sliding_causal;
        char *init; /* drafter directory; NULL: none */
        double init_std;
    } drafter;
    struct {
        size_t steps;      /* 0: not given */
        size_t batch_rows; /* of one optimizer step, all drafters and accumulation; 0: not given */
        size_t micro_rows; /* of one forward and backward on one drafter */
        size_t anchors;    /* at most, a document */
        double learning_rate;
        enum cld_schedule schedule;
        double warmup;    /* share of steps */
        double wsd_decay; /* share of steps in which wsd goes down */
        double min_lr_ratio;
        double beta1, beta2, epsilon, weight_decay;
        double clip; /* largest global gradient norm; 0: off */
        enum cld_objective objective;
        double gamma; /* decay of loss weights within a block; 0: uniform */
        double dpace_alpha;
        double soft_weight, soft_temperature;
        double ema; /* decay of the mean of weights; 0: none is kept */
        bool stop_at_gap;
        bool recompute;
        size_t loss_chunk;       /* blocks */
        size_t checkpoint_every; /* steps; 0: only at the end */
        size_t keep;             /* newest checkpoints kept besides the best; 0: all */
        size_t evaluate_every;   /* steps; 0: only at the end */
    } train;
    struct {
        enum cld_attention_backend backend;
    } attention;
    struct {
        struct cld_real_list limit_gib; /* n == 0: what the device reports; 1: every device;
                                           else one for each of targets, then of drafters */
        double reserve_gib;
        double max_buffer_gib; /* 0: what the device reports */
    } memory;
    struct {
        /* Device numbers or names, see --device; n == 0: not given. */
        struct cld_text_list targets, drafters;
        size_t ring_slots; /* of features, for each target worker */
    } devices;
    struct {
        enum cld_program_source program;
        enum cld_kernel_family kernels;
        enum cld_dtype precision; /* CLD_F32 or CLD_BF16: storage of weights and activations */
        char *cache_dir;          /* NULL: the user's cache directory; "off": none (cache.h) */
        char *modules; /* directory of SPIR-V modules; NULL: that of the build (modules.h) */
        char *tuning;  /* "auto", "off" or a table (tuning.h) */
        struct {       /* a module of the user's for an operation; NULL: none */
            char *rmsnorm, *qknorm_rope, *swiglu, *add, *gather, *fill, *cross_entropy,
                *sum_squares, *adamw;
        } override;
    } runtime;
    struct {
        enum cld_log_level level;
        size_t every; /* steps between progress lines off a terminal */
        bool tensorboard;
    } log;
    struct {
        size_t rows;                  /* held-out rows used; 0: all */
        bool ema;                     /* the mean of weights is what is evaluated */
        size_t decode_rows;           /* of each bucket; 0: none is decoded */
        size_t decode_every;          /* steps of training; 0: never */
        struct cld_text_list buckets; /* "NAME=FILE" or "FILE"; n == 0: data.heldout */
        size_t new_tokens;            /* of a text, at most */
        double temperature;           /* 0: greedy */
        double top_p;
        bool by_block; /* decode once more through passes of whole blocks, to compare */
    } eval;
    struct {
        size_t batch_size; /* prompts that are answered together */
        size_t new_tokens; /* of an answer, at most */
        double temperature, top_p;
        enum cld_thinking thinking;
    } generate;
    struct {
        struct cld_enum_list what; /* enum cld_bench_what */
        struct cld_shape_list shapes;
        struct cld_enum_list gemm;    /* enum cld_gemm_backend */
        struct cld_enum_list storage; /* CLD_F32, CLD_BF16; n == 0: runtime.precision */
        bool target;                  /* pipelines have one */
        size_t repeats, warmup;
        double min_ms;
        double limit_s; /* of the repeats of one thing; 0: none */
        size_t transfer_kib;
        bool roofline;
    } bench;
    struct {
        char *zip; /* "all", or groups of keys: "a.b,c.d | e.f,g.h"; NULL: none */
        size_t max_points;
        double limit_s; /* after which no point begins; 0: none */
        char *x;        /* key along the x axis of a drawing; NULL: chosen */
    } sweep;
    struct cld_swept_list swept; /* the other lines of [sweep], in their order */

    char *path; /* of the file, as given */
    /* By row of the table: 0 default, > 0 line, -1 --set, -2 a value of a sweep. */
    int origin[CLD_CONFIG_MAX_KEYS];
};

/* Reads `path`, then applies sets[0..n_sets), each "section.key=value", the last one of a key wins.
 * CLD_E_USAGE with file and line (or --set) for whatever is not exactly right. `cfg` need not be
 * initialised; it is freed with cld_config_free whatever the result was. */
enum cld_status cld_config_load(const char *path, const char *const *sets, size_t n_sets,
                                struct cld_config *cfg, struct cld_error *err);
/* The same from a text, such as a checkpoint's; `what` names it in messages. */
enum cld_status cld_config_parse(const char *text, const char *what, struct cld_config *cfg,
                                 struct cld_error *err);
void cld_config_free(struct cld_config *cfg); /* NULL-safe; leaves an empty configuration */

/* Rules between keys, and the keys that a command cannot do without. Needs no other file. */
enum cld_config_use {
    CLD_CONFIG_PLAN,
    CLD_CONFIG_TRAIN,
    CLD_CONFIG_EVAL,
    CLD_CONFIG_BENCH,
    CLD_CONFIG_GENERATE
};
enum cld_status cld_config_check(const struct cld_config *cfg, enum cld_config_use use,
                                 struct cld_error *err);

/* The whole configuration as INI text, the origin of each value as a comment. It loads to the same
 * values. *out is freed with free(). */
enum cld_status cld_config_text(const struct cld_config *cfg, char **out, struct cld_error *err);

/* May a run that began with `old` go on with `now`? CLD_E_USAGE names the first key that may not
 * change, with both values. */
enum cld_status cld_config_resume_diff(const struct cld_config *old, const struct cld_config *now,
                                       struct cld_error *err);

/* What processes on several machines must have in common: every value but those of [devices],
 * [memory], [log] and paths. *out is freed with free(). */
enum cld_status cld_config_shared_text(const struct cld_config *cfg, char **out,
                                       struct cld_error *err);

/* A configuration of its own: `base` without its sweep, with the n keys names[] set to values[].
 * Freed with cld_config_free whatever the result was. CLD_E_USAGE. */
enum cld_status cld_config_with(const struct cld_config *base, const char *const *names,
                                const char *const *values, size_t n, struct cld_config *out,
                                struct cld_error *err);

/* What was given and can change a measurement, "section.key=value" with blanks between: all but
 * defaults, [log], [sweep], run.dir and bench.what. *out is freed with free(). */
enum cld_status cld_config_given_text(const struct cld_config *cfg, char **out,
                                      struct cld_error *err);

/* The name of today of "section.key", which is `name` itself unless it is an old one: writes to
 * `to` and returns it. */
const char *cld_config_name_now(const char *name, char *to, size_t n);
/* The unit of "section.key"; "" if there is none. */
const char *cld_config_unit(const char *name);
/* What the configuration calls value i of an enum: "gemm" is 0 of "bench.what". */
const char *cld_config_value_name(const char *name, int i);

/* Where the value of "section.key" comes from: "default", "FILE:LINE" or "--set". Writes to `to`
 * and returns it; for messages of those who find a value wrong later. */
const char *cld_config_where(const struct cld_config *cfg, const char *name, char *to, size_t n);

/* drafter.mask_token as a number; -1 where it is the text of a token (or not given). */
int64_t cld_config_mask_id(const struct cld_config *cfg);

/* Bytes of a size in GiB; saturates (size.h). */
size_t cld_config_gib(double gib);

/* Every key with type, range, default and help: for a terminal, and as docs/config.md. */
void cld_config_write_help(FILE *to);
void cld_config_write_markdown(FILE *to);
/* The same as sections of a manual page. */
void cld_config_write_man(FILE *to);

/* Section and name of the i-th key, and the words that it takes among other things (ends with NULL;
 * NULL: none); false past the last. */
bool cld_config_key_at(size_t i, const char **section, const char **name,
                       const char *const **words);

#endif
