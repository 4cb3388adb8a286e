/* Programs for Quire in C: the guest ABI, version 1.4 (docs/reference/guest-abi.md).
 *
 * Needs no C library. One file of a program defines QUIRE_PROGRAM before it includes this header,
 * and defines
 *
 *     void on_start(const char *args, uint32_t length);   arguments, each ended by a NUL
 *     void on_event(const quire_event *event);            one answer, or news
 *
 * Both issue commands and return; nothing blocks. What a command points to must stay as it is until
 * on_start, or the last on_event of a turn, has returned. What an event points to is gone after
 * on_event.
 *
 *     zig cc --target=wasm32-freestanding -O2 -nostdlib -Wl,--no-entry -o program.wasm program.c
 */
#ifndef QUIRE_H
#define QUIRE_H

#include <stddef.h>
#include <stdint.h>

enum quire_op {
  QUIRE_SEND = 1, QUIRE_RECEIVE = 2, QUIRE_LOG = 3, QUIRE_SLEEP = 4, QUIRE_HTTP_GET = 5,
  QUIRE_HTTP_POST = 6, QUIRE_END = 7, QUIRE_CANCEL_ASKED = 8, QUIRE_ASK_SERVICE = 9,
  QUIRE_TOKENIZE = 16, QUIRE_DETOKENIZE = 17, QUIRE_MODEL_INFO = 18,
  QUIRE_CREATE_QUEUE = 32, QUIRE_CLOSE_QUEUE = 33, QUIRE_RESET_QUEUE = 34, QUIRE_SYNCHRONIZE = 35,
  QUIRE_CANCEL = 36, QUIRE_SET_QUEUE_PRIORITY = 37,
  QUIRE_ALLOC_PAGES = 40, QUIRE_DEALLOC_PAGES = 41, QUIRE_ALLOC_EMBEDS = 42,
  QUIRE_DEALLOC_EMBEDS = 43, QUIRE_EXPORT_PAGES = 44, QUIRE_IMPORT_PAGES = 45,
  QUIRE_RELEASE_EXPORT = 46, QUIRE_IMPORT_PREFIX = 47,
  QUIRE_EMBED_TEXT = 48, QUIRE_FORWARD = 49, QUIRE_GET_NEXT_DIST = 50, QUIRE_SAMPLE = 51,
  QUIRE_DECODE = 52, QUIRE_COPY_PAGE = 53, QUIRE_TRUNCATE_PAGE = 54, QUIRE_MASK_PAGE = 55,
  QUIRE_FORWARD_WITH = 56, QUIRE_EMBED_SLOTS = 57, QUIRE_SAMPLE_SLOTS = 58, QUIRE_DECODE_WITH = 59,
  QUIRE_EXPORT_TEXT = 60, QUIRE_IMPORT_TEXT = 61, QUIRE_REPOSITION_PAGE = 62
};

enum { QUIRE_JSON_SCHEMA = 1, QUIRE_REGEX = 2, QUIRE_LARK = 3 };  /* quire_decode_with.grammar */

enum quire_status {
  QUIRE_OK = 0, QUIRE_INVALID = 1, QUIRE_UNKNOWN_HANDLE = 2, QUIRE_CAPACITY = 3,
  QUIRE_POISONED = 4, QUIRE_CANCELLED = 5, QUIRE_ENGINE = 6, QUIRE_FORBIDDEN = 7,
  QUIRE_CLOSED = 8, QUIRE_TOO_LARGE = 9, QUIRE_OTHER = 15
};

enum { QUIRE_LAST = 1 };  /* quire_event.flags: the command's last event */
enum { QUIRE_STOP = 1, QUIRE_LENGTH = 2, QUIRE_ENDED_EARLY = 3 };  /* why a decode has ended */

typedef struct {
  uint16_t op, flags;
  uint32_t id, a, b, c, d, address, length;
} quire_command;

typedef struct {
  uint16_t op, flags;
  uint32_t id;
  int32_t status;
  uint32_t a, b, c, address, length;
} quire_event;

typedef struct {
  uint32_t commands, max_commands, events, max_events, inbox, inbox_bytes, reserved[2];
} quire_io;

typedef struct {  /* draw == 0: the most likely token; top_p 0 and top_k 0: no cut; seed 0: any */
  uint32_t draw;
  float temperature;
  uint32_t top_k;
  float top_p, min_p;
  uint32_t seed;
} quire_sampler;

typedef struct {  /* followed by the ids: context, output, tokens, stop tokens */
  uint32_t position, max_tokens, num_context, num_output, num_tokens, num_stops;
  quire_sampler sampler;
} quire_decode;

typedef struct {  /* followed by the ids of each list, in this order */
  uint32_t num_context, num_inputs, num_output, num_outputs;
} quire_forward;

typedef struct {  /* followed by the ids as in quire_forward, the adapter's name (UTF-8, filled up to
                     4 bytes), and a row of mask_bits bits for each input, each in bytes of its own */
  uint32_t num_context, num_inputs, num_output, num_outputs, mask_bits, adapter_bytes;
} quire_forward_with;

typedef struct {  /* followed by the grammar, the adapter's name (both filled up to 4 bytes), and a
                     quire_decode with its ids */
  uint32_t grammar, grammar_bytes, adapter_bytes, reserved;
} quire_decode_with;

typedef struct {  /* followed by the tokens and the name, UTF-8, filled up to 4 bytes */
  uint32_t num_tokens, name_bytes;
} quire_export_text;

typedef struct {
  uint32_t source, source_offset, target, target_offset, num_slots;
} quire_copy;

typedef struct {  /* an answer to QUIRE_MODEL_INFO; event->a has the number of models,
                     event->b what stands behind the point in the ABI's version */
  uint32_t vocab_size, page_size, max_model_len, num_eos, eos[];
} quire_model_info;

_Static_assert(sizeof(quire_command) == 32, "commands have 32 bytes");
_Static_assert(sizeof(quire_event) == 32, "events have 32 bytes");
_Static_assert(sizeof(quire_io) == 32, "the io area has 32 bytes");
_Static_assert(sizeof(quire_decode) == 48, "the head of a decode has 48 bytes");

#define QUIRE_EXPORT(name) __attribute__((export_name(name), used))

/* A fresh command, to be filled in. Its id is chosen; the answer's event carries it. */
quire_command *quire_issue(enum quire_op op);

static inline const void *quire_payload(const quire_event *event) {
  return (const void *)(uintptr_t)event->address;
}

static inline uint32_t quire_text(enum quire_op op, uint32_t a, const char *text, uint32_t length) {
  quire_command *command = quire_issue(op);
  command->a = a;
  command->address = (uint32_t)(uintptr_t)text;
  command->length = length;
  return command->id;
}

static inline uint32_t quire_send(const char *text, uint32_t length) {
  return quire_text(QUIRE_SEND, 0, text, length);
}

static inline void quire_log(int is_error, const char *text, uint32_t length) {
  quire_text(QUIRE_LOG, is_error != 0, text, length);
}

/* The last command. `result` is JSON, or with failed != 0 a message. */
static inline void quire_end(int failed, const char *result, uint32_t length) {
  quire_text(QUIRE_END, failed != 0, result, length);
}

static inline uint32_t quire_receive(void) { return quire_issue(QUIRE_RECEIVE)->id; }

static inline uint32_t quire_sleep(uint32_t milliseconds) {
  quire_command *command = quire_issue(QUIRE_SLEEP);
  command->a = milliseconds;
  return command->id;
}

/* A service of the node, e.g. "store.get": `text` is its name, of `name_length` bytes, and behind it
   the arguments, a JSON object. Topics and stores are those that the manifest names. */
static inline uint32_t quire_ask_service(const char *text, uint32_t name_length, uint32_t length) {
  return quire_text(QUIRE_ASK_SERVICE, name_length, text, length);
}

/* Gives up a call or a command on a queue, by its id. It still has an answer: what it did before, or
 * status QUIRE_CANCELLED. */
static inline void quire_cancel(uint32_t id) {
  quire_issue(QUIRE_CANCEL)->a = id;
}

static inline uint32_t quire_tokenize(uint32_t model, const char *text, uint32_t length) {
  return quire_text(QUIRE_TOKENIZE, model, text, length);
}

/* Special tokens are left out. */
static inline uint32_t quire_detokenize(uint32_t model, const uint32_t *tokens, uint32_t count) {
  quire_command *command = quire_issue(QUIRE_DETOKENIZE);
  command->a = model;
  command->b = count;
  command->c = 1;
  command->address = (uint32_t)(uintptr_t)tokens;
  return command->id;
}

static inline void quire_create_queue(uint32_t queue, uint32_t model) {
  quire_command *command = quire_issue(QUIRE_CREATE_QUEUE);
  command->a = queue;
  command->b = model;
}

/* `op` is one of QUIRE_{ALLOC,FREE}_{PAGES,EMBEDS}: `count` ids of your choice from `first` on. */
static inline uint32_t quire_handles(enum quire_op op, uint32_t queue, uint32_t first,
                                     uint32_t count) {
  quire_command *command = quire_issue(op);
  command->a = queue;
  command->b = first;
  command->c = count;
  return command->id;
}

/* `head` and the ids behind it, `length` bytes in all. */
static inline uint32_t quire_decode_tokens(uint32_t queue, const quire_decode *head,
                                           uint32_t length) {
  return quire_text(QUIRE_DECODE, queue, (const char *)head, length);
}

static inline void quire_set_queue_priority(uint32_t queue, int32_t priority) {
  quire_command *command = quire_issue(QUIRE_SET_QUEUE_PRIORITY);
  command->a = queue;
  command->c = (uint32_t)priority;
}

static inline uint32_t quire_copy_page(uint32_t queue, const quire_copy *copy) {
  return quire_text(QUIRE_COPY_PAGE, queue, (const char *)copy, sizeof *copy);
}

/* `fill` slots are left. */
static inline uint32_t quire_truncate_page(uint32_t queue, uint32_t page, uint32_t fill) {
  return quire_handles(QUIRE_TRUNCATE_PAGE, queue, page, fill);
}

/* Its slots go `shift` positions on, or back. */
static inline uint32_t quire_reposition_page(uint32_t queue, uint32_t page, int32_t shift) {
  return quire_handles(QUIRE_REPOSITION_PAGE, queue, page, (uint32_t)shift);
}

/* One bit a slot, the lowest of a byte first: 1 is visible. */
static inline uint32_t quire_mask_page(uint32_t queue, uint32_t page, const uint8_t *bits,
                                       uint32_t num_slots) {
  quire_command *command = quire_issue(QUIRE_MASK_PAGE);
  command->a = queue;
  command->b = page;
  command->c = num_slots;
  command->address = (uint32_t)(uintptr_t)bits;
  command->length = (num_slots + 7) / 8;
  return command->id;
}

static inline uint32_t quire_release_export(uint32_t queue, const char *name, uint32_t length) {
  return quire_text(QUIRE_RELEASE_EXPORT, queue, name, length);
}

/* Pages from `first` on, with the text that `head` and what stands behind it name, in `length` bytes.
   seconds 0: as long as the program. */
static inline uint32_t quire_export_pages_text(uint32_t queue, uint32_t first, uint32_t num_pages,
                                               uint32_t seconds, const quire_export_text *head,
                                               uint32_t length) {
  quire_command *command = quire_issue(QUIRE_EXPORT_TEXT);
  command->a = queue;
  command->b = first;
  command->c = num_pages;
  command->d = seconds;
  command->address = (uint32_t)(uintptr_t)head;
  command->length = length;
  return command->id;
}

/* `num_pages` pages from `first` on are offered; the answer is that of QUIRE_IMPORT_PAGES. */
static inline uint32_t quire_import_prefix(uint32_t queue, uint32_t first, uint32_t num_pages,
                                           const uint32_t *tokens, uint32_t num_tokens) {
  quire_command *command = quire_issue(QUIRE_IMPORT_PREFIX);
  command->a = queue;
  command->b = first;
  command->c = num_pages;
  command->address = (uint32_t)(uintptr_t)tokens;
  command->length = 4 * num_tokens;
  return command->id;
}

/* `head` and what stands behind it, `length` bytes in all. */
static inline uint32_t quire_forward_masked(uint32_t queue, const quire_forward_with *head,
                                            uint32_t length) {
  return quire_text(QUIRE_FORWARD_WITH, queue, (const char *)head, length);
}

static inline uint32_t quire_decode_constrained(uint32_t queue, const quire_decode_with *head,
                                                uint32_t length) {
  return quire_text(QUIRE_DECODE_WITH, queue, (const char *)head, length);
}

/* Of tokens that the program need not have seen: `slots_and_positions` has `count` of each. */
static inline uint32_t quire_embed_slots(uint32_t queue, uint32_t first_embed, uint32_t count,
                                         const uint32_t *slots_and_positions) {
  quire_command *command = quire_issue(QUIRE_EMBED_SLOTS);
  command->a = queue;
  command->b = first_embed;
  command->c = count;
  command->address = (uint32_t)(uintptr_t)slots_and_positions;
  return command->id;
}

#ifdef QUIRE_PROGRAM

#ifndef QUIRE_RING
#define QUIRE_RING 64
#endif
#ifndef QUIRE_INBOX_BYTES
#define QUIRE_INBOX_BYTES 65536
#endif

void on_start(const char *args, uint32_t length);
void on_event(const quire_event *event);

static quire_command quire_commands[QUIRE_RING];
static quire_event quire_events[QUIRE_RING];
static _Alignas(8) unsigned char quire_inbox[QUIRE_INBOX_BYTES];
static quire_io quire_area;
static uint32_t quire_num_commands, quire_last_id;

quire_command *quire_issue(enum quire_op op) {
  if (quire_num_commands == QUIRE_RING) __builtin_trap();  /* more than a turn may hold */
  quire_command *command = &quire_commands[quire_num_commands++];
  *command = (quire_command){.op = (uint16_t)op, .id = ++quire_last_id};
  return command;
}

QUIRE_EXPORT("quire_abi_1") uint32_t quire_abi(void) {
  quire_area = (quire_io){
      .commands = (uint32_t)(uintptr_t)quire_commands, .max_commands = QUIRE_RING,
      .events = (uint32_t)(uintptr_t)quire_events, .max_events = QUIRE_RING,
      .inbox = (uint32_t)(uintptr_t)quire_inbox, .inbox_bytes = QUIRE_INBOX_BYTES};
  return (uint32_t)(uintptr_t)&quire_area;
}

QUIRE_EXPORT("quire_start") uint32_t quire_start(uint32_t args, uint32_t length) {
  on_start((const char *)(uintptr_t)args, length);
  return quire_num_commands;
}

QUIRE_EXPORT("quire_poll") uint32_t quire_poll(uint32_t num_events) {
  quire_num_commands = 0;
  for (uint32_t i = 0; i < num_events; i++) on_event(&quire_events[i]);
  return quire_num_commands;
}

#define QUIRE_MANIFEST(json) \
  QUIRE_EXPORT("quire_manifest") uint32_t quire_manifest(void) { \
    static const char text[] = json; \
    return (uint32_t)(uintptr_t)text; \
  }

#endif /* QUIRE_PROGRAM */
#endif /* QUIRE_H */
