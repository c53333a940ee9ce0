/* manifest.h - manifest.json: the names, sizes and SHA-256 of the files of a directory.
 *
 * A directory is complete when it has a manifest and its files are as the manifest says; a reader
 * that trusts a directory's name alone trusts a copy that stopped half way. The manifest lists
 * every file beside it, in order of name; files that are added later are not its business. Any
 * thread. */
#ifndef CLD_BASE_MANIFEST_H
#define CLD_BASE_MANIFEST_H

#include "base/error.h"

#define CLD_MANIFEST_NAME "manifest.json"

/* Hashes every file of `dir` (only regular files may be there), writes the manifest, crash-safe. */
enum cld_status cld_manifest_write(const char *dir, struct cld_error *err);

/* CLD_E_INPUT names the files that are missing or changed, or says what the manifest lacks. */
enum cld_status cld_manifest_verify(const char *dir, struct cld_error *err);

#endif
