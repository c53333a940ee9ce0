#include "ops/verdicts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "opencl/cache.h"
#include "opencl/kernel_source.h"

/* Of this process: devices of one kind and driver answer alike. */
struct known {
    char key[CLD_SHA256_HEX_BYTES];
    struct cld_verdicts verdicts;
    struct known *next;
};
static struct known *all_known;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

unsigned cld_verdicts_bits(const struct cld_verdicts *v)
{
    unsigned bits = 0;
    for (int i = 0; i < CLD_N_PROBES; i++)
        if (v->is[i] == CLD_PROBE_WORKS)
            bits |= cld_instruction_set_bit((enum cld_instruction_set)i);
    return bits;
}

static void refuse_all(struct cld_verdicts *v, const char *why)
{
    memset(v, 0, sizeof *v);
    for (int i = 0; i < CLD_N_PROBES; i++) {
        v->is[i] = CLD_PROBE_REFUSED;
        snprintf(v->why[i], sizeof v->why[i], "%s", why);
    }
}

/* The kernels that the probes run, the device and its driver. False: no memory. */
static bool key_of(const struct cld_device_info *d, char key[CLD_SHA256_HEX_BYTES])
{
    static const char *const files[] = {"gemm_sm80.cl", "gemm_sm90a.cl", "gemm_operand.cl"};
    enum { n_files = sizeof files / sizeof *files };
    struct cld_error err = CLD_ERROR_INIT;
    char *sources[n_files] = {NULL};
    size_t n_bytes = 0;
    bool ok = true;
    for (size_t i = 0; i < n_files && ok; i++)
        ok = !cld_kernel_source(files[i], &sources[i], &n_bytes, &err);
    if (ok) {
        const char *texts[] = {"verdicts of probes",
                               sources[0],
                               sources[1],
                               sources[2],
                               d->name,
                               d->vendor,
                               d->driver,
                               d->version,
                               d->platform,
                               d->platform_version};
        cld_cache_key(texts, sizeof texts / sizeof *texts, key);
    }
    for (size_t i = 0; i < n_files; i++)
        free(sources[i]);
    return ok;
}

/* --- on disk: a line "VERDICT REASON" for each probe -------------------------------------------
 */

static bool parse_line(const char *line, size_t n, struct cld_verdicts *v, int probe)
{
    for (int i = 0; i < CLD_N_PROBE_VERDICTS; i++) {
        const char *name = cld_probe_verdict_name((enum cld_probe_verdict)i);
        size_t n_name = strlen(name);
        if (n <= n_name || memcmp(line, name, n_name) || line[n_name] != ' ')
            continue;
        v->is[probe] = (enum cld_probe_verdict)i;
        snprintf(v->why[probe], sizeof v->why[probe], "%.*s", (int)(n - n_name - 1),
                 line + n_name + 1);
        return true;
    }
    return false;
}

static bool parse(const unsigned char *payload, size_t n_bytes, struct cld_verdicts *v)
{
    const char *at = (const char *)payload, *end = at + n_bytes;
    memset(v, 0, sizeof *v);
    for (int i = 0; i < CLD_N_PROBES; i++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop || !parse_line(at, (size_t)(stop - at), v, i))
            return false;
        at = stop + 1;
    }
    return at == end;
}

/* Makes no directory: a plan writes nothing. */
static bool load(const char *cache_dir, const char *key, struct cld_verdicts *v)
{
    unsigned char *payload = NULL;
    size_t n_bytes = 0;
    bool found = false;
    if (!cache_dir || access(cache_dir, F_OK))
        return false;
    struct cld_cache *c = cld_cache_open(cache_dir, CLD_CACHE_CAP_BYTES);
    if (c && cld_cache_get(c, key, &payload, &n_bytes) && !(found = parse(payload, n_bytes, v)))
        cld_cache_drop(c, key);
    free(payload);
    cld_cache_close(c);
    return found;
}

static void store(const char *cache_dir, const char *key, const struct cld_verdicts *v)
{
    char text[CLD_N_PROBES * (sizeof v->why[0] + 16)];
    size_t at = 0;
    struct cld_cache *c = cache_dir ? cld_cache_open(cache_dir, CLD_CACHE_CAP_BYTES) : NULL;
    if (!c)
        return;
    for (int i = 0; i < CLD_N_PROBES; i++) {
        int n = (int)strcspn(v->why[i], "\n");
        at += (size_t)snprintf(text + at, sizeof text - at, "%s %.*s\n",
                               cld_probe_verdict_name(v->is[i]), n, v->why[i]);
    }
    cld_cache_put(c, key, text, at);
    cld_cache_close(c);
}

/* --- under known_lock --------------------------------------------------------------------------
 */

static struct known *find(const char *key)
{
    struct known *k = all_known;
    while (k && strcmp(k->key, key))
        k = k->next;
    return k;
}

static void remember(const char *key, const struct cld_verdicts *v)
{
    struct known *k = find(key);
    if (!k && (k = calloc(1, sizeof *k))) {
        memcpy(k->key, key, sizeof k->key);
        k->next = all_known;
        all_known = k;
    }
    if (k)
        k->verdicts = *v;
}

static bool recall(const char *key, const char *cache_dir, struct cld_verdicts *out)
{
    struct known *k = find(key);
    if (k)
        *out = k->verdicts;
    else if (!load(cache_dir, key, out))
        return false;
    remember(key, out);
    return true;
}

static void keep(const char *key, const char *cache_dir, const struct cld_verdicts *v)
{
    remember(key, v);
    if (!v->transient)
        store(cache_dir, key, v);
}

/* Each probe on a queue of its own: a fault of one leaves the others unknown. */
static void run_all(const struct cld_device_info *device, struct cld_verdicts *v)
{
    memset(v, 0, sizeof *v);
    for (int i = 0; i < CLD_N_PROBES; i++) {
        enum cld_instruction_set set = (enum cld_instruction_set)i;
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_queue *q = NULL;
        bool transient = false;
        if (cld_queue_open(device, &(struct cld_queue_options){.name = "probe"}, &q, &err)) {
            v->is[i] = CLD_PROBE_REFUSED;
            snprintf(v->why[i], sizeof v->why[i], "%.200s", err.what);
            transient = err.status == CLD_E_MEMORY;
        } else {
            v->is[i] = cld_probe_run(q, set, v->why[i], sizeof v->why[i], &transient);
        }
        v->transient = v->transient || transient;
        cld_queue_close(q);
        cld_info("%s: probe of %s: %s%s%s", device->name, cld_instruction_set_name(set),
                 cld_probe_verdict_name(v->is[i]), v->why[i][0] ? ": " : "", v->why[i]);
    }
}

/* --- calls -------------------------------------------------------------------------------------
 */

void cld_verdicts_renew(const struct cld_device_info *device, const char *cache_dir,
                        struct cld_verdicts *out)
{
    char key[CLD_SHA256_HEX_BYTES];
    if (!cld_device_is_nvidia(device)) {
        refuse_all(out, "not under NVIDIA's driver");
        return;
    }
    pthread_mutex_lock(&known_lock);
    run_all(device, out);
    if (key_of(device, key))
        keep(key, cache_dir, out);
    pthread_mutex_unlock(&known_lock);
}

bool cld_verdicts_read(const struct cld_device_info *device, const char *cache_dir,
                       struct cld_verdicts *out)
{
    char key[CLD_SHA256_HEX_BYTES];
    if (!cld_device_is_nvidia(device)) {
        refuse_all(out, "not under NVIDIA's driver");
        return true;
    }
    pthread_mutex_lock(&known_lock);
    bool known = key_of(device, key) && recall(key, cache_dir, out);
    pthread_mutex_unlock(&known_lock);
    return known;
}

void cld_verdicts_write(const struct cld_device_info *device, const char *cache_dir,
                        const struct cld_verdicts *v)
{
    char key[CLD_SHA256_HEX_BYTES];
    pthread_mutex_lock(&known_lock);
    if (key_of(device, key))
        keep(key, cache_dir, v);
    pthread_mutex_unlock(&known_lock);
}

/* Threads that open queues at once wait here until the first one has the verdicts. */
unsigned cld_verdicts_resolve(const struct cld_device_info *device, const char *cache_dir)
{
    struct cld_verdicts v;
    char key[CLD_SHA256_HEX_BYTES];
    if (!cld_device_is_nvidia(device))
        return 0;
    pthread_mutex_lock(&known_lock);
    bool has_key = key_of(device, key);
    if (!has_key || !recall(key, cache_dir, &v)) {
        run_all(device, &v);
        if (has_key)
            keep(key, cache_dir, &v);
    }
    pthread_mutex_unlock(&known_lock);
    return cld_verdicts_bits(&v);
}

enum cld_status cld_queue_open_probed(const struct cld_device_info *device,
                                      const struct cld_queue_options *options,
                                      struct cld_queue **out, struct cld_error *err)
{
    struct cld_queue_options with = *options;
    with.instruction_sets = cld_queue_would_use_ptx(device, options)
                                ? cld_verdicts_resolve(device, options->cache_dir)
                                : 0;
    return cld_queue_open(device, &with, out, err);
}
