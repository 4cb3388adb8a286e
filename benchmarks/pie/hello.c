/* The smallest program that says something: its first message is what launch.py waits for. Then it
 * reads messages: "call N" makes N pairs of alloc and free, "send N" sends N messages, "step N" makes
 * N forwards of a token (calls.py). */
#define QUIRE_PROGRAM
#define QUIRE_RING 4096
#include "quire.h"

QUIRE_MANIFEST("{\"name\": \"hello\"}")

enum { FIRST = 1 };

static uint32_t queue, wanted, position, num_steps;

static uint32_t number(const char *text, uint32_t length) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < length; i++) {
    if (text[i] >= '0' && text[i] <= '9') value = 10 * value + (uint32_t)(text[i] - '0');
  }
  return value;
}

void on_start(const char *args, uint32_t length) {
  (void)args;
  (void)length;
  quire_send("here", 4);
  quire_receive();
}

static void make_calls(uint32_t count) {
  quire_create_queue(++queue, 0);
  for (uint32_t i = 0; i < count; i++) {
    quire_handles(QUIRE_ALLOC_PAGES, queue, FIRST, 1);
    wanted = quire_handles(QUIRE_DEALLOC_PAGES, queue, FIRST, 1);
  }
}

/* Answers of embed and forward are not waited for, so they have no id. */
static void step(void) {
  static uint32_t token[2];
  static struct { quire_forward head; uint32_t ids[4]; } work;
  token[0] = 5;
  token[1] = position++;
  quire_command *command = quire_issue(QUIRE_EMBED_TEXT);
  *command = (quire_command){.op = QUIRE_EMBED_TEXT, .a = queue, .b = FIRST + 1, .c = 1,
                             .address = (uint32_t)(uintptr_t)token};
  work.head = (quire_forward){1, 1, 1, 1};
  work.ids[0] = work.ids[2] = FIRST;
  work.ids[1] = work.ids[3] = FIRST + 1;
  command = quire_issue(QUIRE_FORWARD);
  *command = (quire_command){.op = QUIRE_FORWARD, .a = queue, .length = sizeof work,
                             .address = (uint32_t)(uintptr_t)&work};
  wanted = quire_handles(QUIRE_GET_NEXT_DIST, queue, FIRST + 1, 1);
}

static void make_steps(uint32_t count) {
  quire_create_queue(++queue, 0);
  quire_handles(QUIRE_ALLOC_PAGES, queue, FIRST, 1);
  quire_handles(QUIRE_ALLOC_EMBEDS, queue, FIRST + 1, 1);
  position = 0;
  num_steps = count;
  step();
}

static void take(const char *text, uint32_t length) {
  if (length && text[0] == 'c') {
    make_calls(number(text, length));
  } else if (length > 1 && text[0] == 's' && text[1] == 't') {
    make_steps(number(text, length));
  } else if (length && text[0] == 's') {
    for (uint32_t i = number(text, length); i; i--) wanted = quire_send("x", 1);
  }
}

void on_event(const quire_event *event) {
  if (event->status == QUIRE_CLOSED) {
    quire_end(0, 0, 0);
  } else if (event->op == QUIRE_RECEIVE) {
    take(quire_payload(event), event->length);
    if (!wanted) quire_receive();
  } else if (event->id == wanted) {
    wanted = 0;
    if (position < num_steps) {
      step();
      return;
    }
    if (position) quire_issue(QUIRE_CLOSE_QUEUE)->a = queue;
    position = num_steps = 0;
    quire_send("done", 4);
    quire_receive();
  }
}
