/* Text completion: continue a prompt, tell the client how far it is, return the text.
 *
 *     zig cc --target=wasm32-freestanding -O2 -nostdlib -Wl,--no-entry -I.. -o complete.wasm complete.c
 *     quire push complete.wasm && quire run complete --url http://127.0.0.1:8000 -- "Hello,"
 */
#define QUIRE_PROGRAM
#include "quire.h"

QUIRE_MANIFEST("{\"name\": \"complete\", \"description\": \"Continues a prompt, greedily.\"}")

enum { QUEUE = 1, FIRST_PAGE = 1, MAX_TOKENS = 16, MAX_PROMPT = 512, MAX_IDS = 2048, MAX_RESULT = 4096 };

static uint32_t prompt_length, page_size, num_stops, stops[8];
static uint32_t generated[MAX_TOKENS], num_generated;
static struct { quire_decode head; uint32_t ids[MAX_IDS]; } work;
static char prompt_copy[4096];
static char progress[] = "00 tokens";

static void fail(const quire_event *event) { quire_end(1, quire_payload(event), event->length); }

static void decode(const uint32_t *tokens, uint32_t num_tokens) {
  uint32_t num_pages = (num_tokens + MAX_TOKENS + page_size - 1) / page_size, n = 0;
  if (num_tokens > MAX_PROMPT || num_pages + num_tokens + num_stops > MAX_IDS) __builtin_trap();
  quire_create_queue(QUEUE, 0);
  quire_handles(QUIRE_ALLOC_PAGES, QUEUE, FIRST_PAGE, num_pages);
  for (uint32_t i = 0; i < num_pages; i++) work.ids[n++] = FIRST_PAGE + i;
  for (uint32_t i = 0; i < num_tokens; i++) work.ids[n++] = tokens[i];
  for (uint32_t i = 0; i < num_stops; i++) work.ids[n++] = stops[i];
  work.head = (quire_decode){.max_tokens = MAX_TOKENS, .num_output = num_pages,
                             .num_tokens = num_tokens, .num_stops = num_stops};
  quire_decode_tokens(QUEUE, &work.head, sizeof(quire_decode) + 4 * n);
}

void on_start(const char *args, uint32_t length) {
  for (prompt_length = 0; prompt_length < length && args[prompt_length]; prompt_length++) {
    if (prompt_length == sizeof prompt_copy) __builtin_trap();
    prompt_copy[prompt_length] = args[prompt_length];
  }
  quire_issue(QUIRE_MODEL_INFO);
}

/* The result is JSON: a string with its quotes, backslashes and controls escaped. */
static void end(const char *result, uint32_t result_length) {
  static char json[6 * MAX_RESULT + 2];
  if (result_length > MAX_RESULT) __builtin_trap();
  uint32_t n = 0;
  json[n++] = '"';
  for (uint32_t i = 0; i < result_length; i++) {
    unsigned char c = (unsigned char)result[i];
    if (c == '"' || c == '\\') {
      json[n++] = '\\';
      json[n++] = (char)c;
    } else if (c < 32) {
      const char *hex = "0123456789abcdef";
      const char escape[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
      for (uint32_t k = 0; k < sizeof escape; k++) json[n++] = escape[k];
    } else {
      json[n++] = (char)c;
    }
  }
  json[n++] = '"';
  quire_end(0, json, n);
}

void on_event(const quire_event *event) {
  if (event->status != QUIRE_OK) {
    fail(event);
    return;
  }
  switch (event->op) {
    case QUIRE_MODEL_INFO: {
      const quire_model_info *model = quire_payload(event);
      page_size = model->page_size;
      for (; num_stops < model->num_eos && num_stops < 8; num_stops++) {
        stops[num_stops] = model->eos[num_stops];
      }
      quire_tokenize(0, prompt_copy, prompt_length);
      break;
    }
    case QUIRE_TOKENIZE:
      decode(quire_payload(event), event->a);
      break;
    case QUIRE_DECODE: {
      const uint32_t *tokens = quire_payload(event);
      for (uint32_t i = 0; i < event->a && num_generated < MAX_TOKENS; i++) {
        generated[num_generated++] = tokens[i];
      }
      progress[0] = (char)('0' + num_generated / 10);
      progress[1] = (char)('0' + num_generated % 10);
      quire_send(progress, sizeof progress - 1);
      if (event->flags & QUIRE_LAST) quire_detokenize(0, generated, num_generated);
      break;
    }
    case QUIRE_DETOKENIZE:
      end(quire_payload(event), event->length);
      break;
    default:
      break;
  }
}
