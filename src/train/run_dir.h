/* run_dir.h - the directory of a run: config.resolved.ini, devices.json, metrics.jsonl, log.txt,
 * status.json (status_file.h), checkpoints/. Main thread. */
#ifndef CLD_TRAIN_RUN_DIR_H
#define CLD_TRAIN_RUN_DIR_H

#include "config/config.h"
#include "workers/pipeline.h"

/* run.dir as the functions below want it: without slashes at its end, and where it is a symbolic
 * link, what that leads to, so that the directory itself is renamed. The caller frees *out. */
enum cld_status cld_run_dir_resolve(const char *dir, char **out, struct cld_error *err);

/* Does DIR hold a run of ours? Others are never moved. */
bool cld_run_dir_in_use(const char *dir);
/* Do both exist, and `path` is DIR or lies below it? */
bool cld_run_dir_has(const char *dir, const char *path);

/* Makes it ready for a run that begins (or goes on in it, with `goes_on`). A run that is already
 * there is kept under DIR.1, DIR.2, ... and said so; nothing of it is lost. Opens log.txt.
 * CLD_E_USAGE where DIR cannot be renamed ("." and mount points); CLD_E_IO. */
enum cld_status cld_run_dir_begin(const char *dir, const struct cld_config *cfg, bool goes_on,
                                  struct cld_error *err);

/* Writes devices.json: of each of n workers its device, kernels chosen, memory planned. */
enum cld_status cld_run_dir_write_devices(const char *dir, const struct cld_pipeline *p, size_t n,
                                          struct cld_error *err);

#endif
