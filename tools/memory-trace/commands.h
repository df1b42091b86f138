/* tools/memory-trace/commands.h: the commands of cresnet-memory-trace. The operand that names the command is the first
 * one; standard output gets the result. */
#ifndef CR_MEMORY_TRACE_COMMANDS_H
#define CR_MEMORY_TRACE_COMMANDS_H

#include "session/session.h"
#include "tools/common/tool.h"

/* Opens the training session of the configuration or run that the second operand names. The caller closes the session
 * and then the configuration, also after an error. */
CR_MUST cr_status cr_trace_open_session(const struct cr_tool_args *args, const struct cr_config **config,
                                        struct cr_session *session);

/* log CONFIG: writes the memory log of three training steps, from the memory plan. */
cr_status cr_trace_command_log(const struct cr_tool_args *args);
/* plan LOG: finds the iteration in a memory log, and plans it. */
cr_status cr_trace_command_plan(const struct cr_tool_args *args);
/* offsets FILE.csv: plans offsets for the lifetimes in a file. */
cr_status cr_trace_command_offsets(const struct cr_tool_args *args);
/* offloading CONFIG: predicted time against memory, for each rule that selects the tensors to offload. */
cr_status cr_trace_command_offloading(const struct cr_tool_args *args);
/* allocators CONFIG: the memory plan of a training step compared with online allocators. */
cr_status cr_trace_command_allocators(const struct cr_tool_args *args);

#endif
