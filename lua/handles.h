/* handles.h: what the files of the binding share among themselves: the userdata, the checks of
 * arguments and the way the engine is called. A handle whose pointer is NULL is closed.
 *
 * A finalizer of the script may run at any allocation of Lua and may close a handle that an
 * argument names. So checks return handles, and the pointer is taken (bind_cache_live,
 * bind_tensor_live …, which raise for a closed handle) in the very expression that calls the
 * engine. */
#ifndef LLMLUA_HANDLES_H
#define LLMLUA_HANDLES_H

#include "binding.h"

#define CLASS_ERROR    "llm.Error"
#define CLASS_MODEL    "llm.Model"
#define CLASS_METADATA "llm.Metadata"
#define CLASS_CACHE    "llm.Cache"
#define CLASS_TENSOR   "llm.Tensor"
#define CLASS_RNG      "llm.Rng"
#define CLASS_SEQ      "llm.Seq"
#define CLASS_REQUEST  "llm.Request"
#define CLASS_LATE     "llm.Late"

typedef struct model_handle {
    llm_model *model;
    int n_held; /* by runs of jobs: close is refused */
} model_handle;

typedef struct cache_handle { /* user value 1: the model's handle */
    llm_cache *cache;
    lua_Integer mark, i_mark; /* the list that last named it, and where: see bind_caches_check */
} cache_handle;

typedef struct tensor_handle {
    llm_tensor *tensor;
} tensor_handle;

typedef struct request_handle { /* user values: the model's handle, what the request was made of */
    llm_request *request;
    size_t n_layers; /* hidden states that it gives, after these layers */
    const int32_t *layers;
    bool wants_logits;
} request_handle;

typedef struct rng_handle {
    llm_key key;
} rng_handle;

/* ---- error.c ---- */

/* Raise an llm.Error; the format is lua_pushfstring's. */
void bind_error_raise(lua_State *L, llm_kind kind, const char *format, ...)
    __attribute__((noreturn));
void bind_error_raise_engine(lua_State *L, const llm_error *err) __attribute__((noreturn));
void bind_error_push_engine(lua_State *L, const llm_error *err); /* pushes what that raises */
/* Raises an error of the same kind and message as the llm.Error on top, but with the traceback of
 * this call. */
void bind_error_raise_again(lua_State *L) __attribute__((noreturn));
int bind_error_new(lua_State *L); /* llm.error(kind, message, traceback) */
void bind_error_register(lua_State *L);

/* ---- class.c ---- */

/* Makes the metatable of a class. Leaves metatable and method table on the stack for the caller to
 * add to and pop. `fields` answers self.key for keys that are no methods, or is NULL. */
void bind_class_register(lua_State *L, const char *name, const luaL_Reg *meta,
                         const luaL_Reg *methods, lua_CFunction fields);
/* The object at arg if it is of the class, or NULL. */
void *bind_class_test(lua_State *L, int arg, const char *name);
/* The same, raising "WHAT must be a CLASS, got …". */
void *bind_class_check(lua_State *L, int arg, const char *name, const char *what);
int bind_class_type(lua_State *L); /* llm.type(value) */

/* ---- check.c ---- */

const char *bind_check_text(lua_State *L, int arg); /* "4.5", "a string", "llm.Cache": pushes it */
bool bind_check_is_integer(lua_State *L, int arg, lua_Integer *out); /* 4 and 4.0, never a string */
lua_Integer bind_check_integer(lua_State *L, int arg, const char *name);
lua_Integer bind_check_range(lua_State *L, int arg, const char *name, lua_Integer least,
                             lua_Integer most);
double bind_check_number(lua_State *L, int arg, const char *name);
const char *bind_check_string(lua_State *L, int arg, const char *name, size_t *n);
/* A string without zero bytes. */
const char *bind_check_path(lua_State *L, int arg, const char *name);
bool bind_check_boolean(lua_State *L, int arg, const char *name);
void bind_check_table(lua_State *L, int arg, const char *name);
/* The options table at arg (or nothing) has no key outside `known` (ends with NULL). */
void bind_check_options(lua_State *L, int arg, const char *const *known);
/* Pushes an option and returns true, or false (nothing pushed) where it is not given. */
bool bind_check_option(lua_State *L, int arg, const char *name);

/* ---- lists.c: ids and numbers from Lua, in memory that Lua collects ---- */

/* Ids (or any 32-bit integers) given as one integer, a list, or an i32 Tensor (read here). */
size_t bind_ids_count(lua_State *L, int arg, const char *name);
void bind_ids_fill(lua_State *L, int arg, const char *name, int32_t *to, size_t n);
int32_t *bind_ids_check(lua_State *L, int arg, const char *name, size_t *n); /* pushes the buffer */
void bind_ids_push(lua_State *L, const int32_t *ids, size_t n);              /* pushes a Lua list */

typedef enum list_form { LIST_COLUMN, LIST_ROW } list_form; /* what a flat list is */
/* Pushes a tensor of the list at arg: i32 (dtype LLM_I32), f32, or (dtype -1) i32 if it holds
 * nothing but 32-bit integers. A list of lists is a matrix. */
tensor_handle *bind_list_tensor(lua_State *L, int arg, const char *name, llm_device *device,
                                list_form form, int dtype);

/* ---- device.c ---- */

typedef struct binding_state {
    const llm_watch *watch;
    const void *builtin;
    size_t builtin_bytes;
    lua_Integer mark;
    bool is_final; /* a failed allocation is not tried again: llm.fault */
    bool in_job;   /* feeds of coroutines yield requests: requests.c */
    llm_kind (*over)(void *data, lua_Hook hook); /* see binding_set_over */
    void *over_data;
    llm_device *device; /* serves tensors made before any model: the first opened */
} binding_state;

binding_state *binding_get_state(lua_State *L);
/* The device of this state with those options; opened once. NULL with err. */
llm_device *bind_device_get(lua_State *L, const llm_device_options *, llm_error *err);
llm_device *bind_device_default(lua_State *L);
int bind_device_stats(lua_State *L); /* llm.stats() */
int bind_device_list(lua_State *L);  /* llm.devices() */

/* Before a call that makes tensors. */
void bind_engine_prepare(lua_State *L, llm_device *device);
/* After a failure: true if a collection may have freed memory, so that the call is tried again. */
bool bind_engine_retry(lua_State *L, llm_error *err, int *n_tries);

#define BIND_RELIEVE "llm.relieve" /* in the registry: a function, see requests.c */
/* Runs `call`, an expression that is 0 or fills `err`; raises if it fails. */
#define ENGINE(L, on_device, call)                                                                 \
    do {                                                                                           \
        llm_error err = {LLM_OK, ""};                                                              \
        int n_tries = 0;                                                                           \
        bind_engine_prepare(L, on_device);                                                         \
        while ((call) != 0)                                                                        \
            if (!bind_engine_retry(L, &err, &n_tries)) bind_error_raise_engine(L, &err);           \
    } while (0)

/* ---- one file per class ---- */

model_handle *bind_model_check(lua_State *L, int arg, const char *name);
llm_model *bind_model_live(lua_State *L, const model_handle *h);
int bind_model_load(lua_State *L); /* llm.load(path, opts) */
void bind_model_register(lua_State *L);
int bind_model_set_profile(lua_State *L);  /* profile.c: model:set_profile(on) */
int bind_model_profile(lua_State *L);      /* model:profile() */
int bind_model_count_step(lua_State *L);   /* model:count_step(n_sequences, n_past) */
int bind_model_peak(lua_State *L);         /* model:peak(what, size) */
void bind_model_add_forward(lua_State *L); /* forward.c: adds methods to the table on top */
int bind_metadata_new(lua_State *L, int model);
void bind_metadata_register(lua_State *L);

/* A call that feeds a model asks whether it shall wait for the scheduler; then it makes a request
 * (pushed, closed; it keeps what stands at index `staging`), opens it, and returns
 * bind_request_yield with it on top: logits and hidden states become the results of the call. */
bool bind_request_wanted(lua_State *L);
request_handle *bind_request_new(lua_State *L, int model, int staging);
int bind_request_yield(lua_State *L);

/* Pushes a closed handle; model: index of its model. */
cache_handle *bind_cache_new(lua_State *L, int model);
cache_handle *bind_cache_check(lua_State *L, int arg, const char *name);
llm_cache *bind_cache_live(lua_State *L, const cache_handle *h);
/* Pushes a table of the handles in the list at arg, each open and named once; returns how many. */
size_t bind_caches_check(lua_State *L, int arg, const char *name);
int bind_cache_reorder(lua_State *L); /* llm.reorder(kvs, rows) */
void bind_cache_register(lua_State *L);

tensor_handle *bind_tensor_new(lua_State *L); /* pushes a closed handle */
tensor_handle *bind_tensor_test(lua_State *L, int arg);
tensor_handle *arg_tensor(lua_State *L, int arg, const char *name);
llm_tensor *bind_tensor_live(lua_State *L, const tensor_handle *h);
const llm_tensor_info *bind_tensor_info(lua_State *L, const tensor_handle *h);
llm_device *bind_tensor_device(lua_State *L, const tensor_handle *h);
int bind_tensor_make(lua_State *L);        /* llm.tensor(list, dtype) */
int bind_tensor_make_logits(lua_State *L); /* llm.logits(list) */
void bind_tensor_register(lua_State *L);

/* A method of tensors. Upvalue 1 of f is true for the in-place version (name_), upvalue 2 is code.
 */
typedef struct tensor_op {
    const char *name;
    lua_CFunction f;
    int code;
    bool in_place; /* has one */
} tensor_op;
void bind_tensor_add(lua_State *L,
                     const tensor_op *ops);   /* to the table on top; ends with a NULL name */
void bind_tensor_add_values(lua_State *L);    /* tensor_values.c */
void bind_tensor_add_shapes(lua_State *L);    /* tensor_shapes.c */
void bind_tensor_add_choices(lua_State *L);   /* tensor_choices.c */
void bind_tensor_add_filters(lua_State *L);   /* tensor_filters.c */
void bind_tensor_set_operators(lua_State *L); /* tensor_values.c: to the metatable below the top */
/* Pushes where the result goes: argument 1 itself in place, else a new handle. */
tensor_handle *bind_tensor_result(lua_State *L);
#define TENSOR_CODE(L) ((int)lua_tointeger(L, lua_upvalueindex(2)))

/* A number, a tensor, or a list, which becomes a tensor in the argument's place. */
typedef struct operand {
    const tensor_handle *tensor;
    double x;
    bool is_integer;
} operand;
operand bind_operand_check(lua_State *L, int arg, const char *name, llm_device *device,
                           list_form form);
llm_operand bind_operand_live(lua_State *L, const operand *o);

rng_handle *bind_rng_new(lua_State *L, llm_key key);
rng_handle *bind_rng_check(lua_State *L, int arg, const char *name);
int bind_rng_make(lua_State *L); /* llm.rng(seed) */
/* Pushes n keys for the rows of a draw from the rng, or list of one a row, at arg. */
llm_key *bind_rng_keys(lua_State *L, int arg, int64_t n);
void bind_rng_advance(lua_State *L, int arg); /* after the draw */
void bind_rng_register(lua_State *L);

int bind_seq_make(lua_State *L); /* llm.seq(prompt) */
void bind_seq_register(lua_State *L);

#endif
