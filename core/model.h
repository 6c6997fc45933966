/* model.h: a loaded model inside core: the file, what was bound of it, its plan, its pages. */
#ifndef LLM_CORE_MODEL_H
#define LLM_CORE_MODEL_H

#include "arch.h"
#include "image.h"
#include "pages.h"
#include "tokenizer.h"

struct llm_model {
    int references;
    llm_device *device; /* held: of its tensors */
    llm_device *runner; /* held: of weights, pages and passes; the same, or its split with */
    llm_device *host;   /* held, if it is split (layers.c) */
    gguf_file *file;
    tokenizer *tokenizer;
    arch_shape shape;
    kern_weight *weights;
    int32_t n_weights;
    kern_store *store; /* what the backend made of them; */
    image *image;      /* where that is kept; NULL: nowhere */
    llm_memory memory; /* what was made, and how */
    plan plan;
    plan_rope **ropes;
    int32_t n_ropes;
    page_pool pages;
    kern_work *work;
    int64_t piece;         /* rows a run takes at most */
    struct passes *passes; /* what passes work with (pass.h); NULL until the first */
    kern_profile *profile; /* profile.c's; NULL: off */
    llm_watch watch;
    llm_model_info info;
    int32_t *eog;
    char *path, *name, *chat_template;
    char arch_name[32], warning[256];
    struct { /* where item i of a string array begins, for who asks for the next */
        const gguf_value *value;
        size_t i;
        const char *at;
    } meta_cursor;
    uint64_t hash[2]; /* of the content; 0 until asked for */
};

llm_model *model_retain(llm_model *);

/* The content's hash, computed at the first call (reads the whole file). */
const uint64_t *model_hash(llm_model *);

/* Has the backend make the weights ready; gives them back (weights.c). */
int model_bind_weights(llm_model *, const llm_options *, llm_error *err);
void model_unbind_weights(llm_model *);

/* layers.c: whether layers are on two devices; puts them there; */
bool model_is_split(const llm_model *);
int model_place_layers(llm_model *, const llm_options *, llm_error *err);
/* fills in the parts; */
void model_part_memory(const llm_model *, llm_memory *out);
/* adds to the error of a load for which a GPU had too little memory how many layers would fit. */
void model_suggest_layers(const llm_model *, llm_error *err);

/* "matmul", "attend" … */
const char *model_kind_name(plan_kind kind);

/* Drops the profile, if there is one. */
void profile_close(llm_model *);

/* Checks that ids lie in the vocabulary. */
int model_check_ids(const llm_model *, const int32_t *ids, size_t n, llm_error *err);

#endif
