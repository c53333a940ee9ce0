/* rope_config.h - the rotary embedding that a config.json asks for, of targets and of drafters.
 *
 * It may stand in rope_parameters (flat, or one object for each type of layers), in the older
 * rope_scaling (rope_type or type) and, as rope_theta and partial_rotary_factor, at the top level.
 * Places that differ are refused with both values; so are keys inside that are not read here, since
 * each of them would change the angles. Pure, any thread. */
#ifndef CLD_MODEL_ROPE_CONFIG_H
#define CLD_MODEL_ROPE_CONFIG_H

#include <stdbool.h>

#include "formats/json_fields.h"

enum cld_rope_type { CLD_ROPE_DEFAULT, CLD_ROPE_LINEAR, CLD_ROPE_LLAMA3 };

struct cld_rope {
    enum cld_rope_type type;
    double theta;
    double factor;                                                    /* linear, llama3 */
    double low_freq_factor, high_freq_factor, original_max_positions; /* llama3 */
    bool bf16_frequencies; /* round them: a model cast to bf16 as a whole has them so */
};

/* "default", "linear", "llama3". */
const char *cld_rope_type_name(enum cld_rope_type type);

/* Of layers of this type ("full_attention" or "sliding_attention"). theta is 0 where the file does
 * not give it. Complaints go to r->err, the first one stays. */
void cld_rope_read(const struct cld_fields *r, const char *layer_type, struct cld_rope *out);

#endif
