/* thinking.h - does a prompt ask for thinking? The values of generate.thinking, and what rows say.
 */
#ifndef CLD_CONFIG_THINKING_H
#define CLD_CONFIG_THINKING_H

enum cld_thinking { CLD_THINKING_AUTO, CLD_THINKING_ON, CLD_THINKING_OFF };

#endif
