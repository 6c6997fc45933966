/* stream.cpp: streams, events, capture and graphs. Work runs when it is issued; or, put off
 * (control.h), when the host waits for something. While a stream captures, it is kept in a graph.
 */
#include "inside.h"

struct CUgraph_st {
    std::vector<emu_work> works;
};
struct CUgraphExec_st {
    std::vector<emu_work> works;
};
struct CUstream_st {
    unsigned flags;
    CUgraph_st *capture; /* NULL: none goes on */
    bool origin, lost;   /* of the capture: it began here; it is invalid */
    int id;
    emu_clock clock; /* while checking: the work that comes before what is issued next */
};
struct CUevent_st {
    CUgraph_st *capture; /* recorded in this */
    emu_clock clock;
};

static CUstream_st default_stream;
static std::vector<CUstream_st *> streams = {&default_stream};
static std::vector<emu_work> put_off; /* in the order of issue */

static CUstream_st *stream_of(cudaStream_t s) { return s ? s : &default_stream; }

static void run_work(emu_work &work) {
    if (emu_state() == cudaSuccess) work.run();
}
void emu_finish_all(void) {
    std::vector<emu_work> works;
    works.swap(put_off);
    for (emu_work &work : works) run_work(work);
}

/* ---- order between streams ---- */

static emu_clock host_clock; /* what the host has waited for */
static int n_ids = 1;

static void learn(emu_clock *clock, const emu_clock &other) {
    if (clock->size() < other.size()) clock->resize(other.size());
    for (size_t i = 0; i < other.size(); i++) (*clock)[i] = max((*clock)[i], other[i]);
}
/* The legacy stream and those not created non-blocking wait for each other. */
static void step(CUstream_st *s) {
    learn(&s->clock, host_clock);
    for (CUstream_st *other : streams)
        if (other != s && (s == &default_stream || other == &default_stream) &&
            !((s->flags | other->flags) & cudaStreamNonBlocking))
            learn(&s->clock, other->clock);
    if (s->clock.size() <= (size_t)s->id) s->clock.resize((size_t)s->id + 1);
    s->clock[(size_t)s->id]++;
}
static void note_use(CUstream_st *s, emu_memory *m, const emu_work &work, const emu_word &w) {
    const uint64_t time = s->clock[(size_t)s->id];
    emu_use *mine = nullptr;
    for (emu_use &u : m->uses) {
        if (u.stream == s->id && u.writes == w.writes) mine = &u;
        const uint64_t known = (size_t)u.stream < s->clock.size() ? s->clock[(size_t)u.stream] : 0;
        if (u.stream == s->id || known >= u.time || !(u.writes || w.writes)) continue;
        emu_found(cudaErrorLaunchFailure,
                  "%s: argument %d is memory that another stream %s, with no event between",
                  work.name.c_str(), w.argument, u.writes ? "writes" : "reads");
        u.time = 0; /* told once */
    }
    if (mine)
        mine->time = time;
    else
        m->uses.push_back({s->id, time, w.writes});
}
static void note_work(CUstream_st *s, const emu_work &work) {
    step(s);
    for (const emu_word &w : work.words) {
        emu_memory *m = emu_find_memory((const void *)(uintptr_t)w.value);
        if (m) note_use(s, m, work, w);
    }
}

cudaError_t emu_issue(cudaStream_t stream, emu_work &&work) {
    CUstream_st *s = stream_of(stream);
    if (emu_checking) note_work(s, work);
    if (s->capture) {
        s->capture->works.push_back(std::move(work));
        return s->lost ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    }
    if (emu_config().late)
        put_off.push_back(std::move(work));
    else
        run_work(work);
    return emu_state();
}

bool emu_capturing(void) {
    for (const CUstream_st *s : streams)
        if (s->capture) return true;
    return false;
}
cudaError_t emu_not_in_capture(void) {
    if (!emu_capturing()) return cudaSuccess;
    for (CUstream_st *s : streams) s->lost = s->capture != nullptr;
    return emu_error(cudaErrorStreamCaptureUnsupported);
}
cudaError_t emu_finish_host(void) {
    for (const CUstream_st *s : streams) learn(&host_clock, s->clock);
    emu_finish_all();
    return emu_state();
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    EMU_CALL;
    *out = new CUstream_st{flags, nullptr, false, false, n_ids++, {}};
    streams.push_back(*out);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    for (size_t i = 1; i < streams.size(); i++) {
        if (streams[i] != stream) continue;
        emu_finish_all();
        streams.erase(streams.begin() + (long)i);
        delete stream;
        return emu_state();
    }
    return emu_error(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    EMU_CALL;
    const cudaError_t error = emu_not_in_capture();
    if (error != cudaSuccess) return error;
    learn(&host_clock, stream_of(stream)->clock);
    emu_finish_all();
    return emu_state();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
    EMU_CALL;
    *out = new CUevent_st{nullptr, {}};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    emu_finish_all();
    delete event;
    return emu_state();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    EMU_CALL;
    CUstream_st *s = stream_of(stream);
    event->clock = s->clock;
    event->capture = s->capture;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    EMU_CALL;
    CUstream_st *s = stream_of(stream);
    if (event->capture && !s->capture) s->capture = event->capture; /* it joins */
    learn(&s->clock, event->clock);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    EMU_CALL;
    if (event->capture) {
        (void)emu_not_in_capture();
        return emu_error(cudaErrorCapturedEvent);
    }
    learn(&host_clock, event->clock);
    emu_finish_all();
    return emu_state();
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
/* ---- capture, graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode) {
    EMU_CALL;
    CUstream_st *s = stream_of(stream);
    if (s == &default_stream) return emu_error(cudaErrorStreamCaptureUnsupported);
    if (s->capture) return emu_error(cudaErrorIllegalState);
    s->capture = new CUgraph_st;
    s->origin = true;
    s->lost = false;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    EMU_CALL;
    CUstream_st *s = stream_of(stream);
    *out = nullptr;
    if (!s->capture || !s->origin) return emu_error(cudaErrorIllegalState);
    CUgraph_st *graph = s->capture;
    const bool lost = s->lost;
    for (CUstream_st *each : streams)
        if (each->capture == graph) each->capture = nullptr, each->origin = each->lost = false;
    if (lost) {
        delete graph;
        return emu_error(cudaErrorStreamCaptureInvalidated);
    }
    *out = graph;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out) {
    EMU_CALL;
    const CUstream_st *s = stream_of(stream);
    *out = !s->capture ? cudaStreamCaptureStatusNone
           : s->lost   ? cudaStreamCaptureStatusInvalidated
                       : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    EMU_CALL;
    *out = new CUgraphExec_st{graph->works};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    EMU_CALL;
    if (stream_of(stream)->capture) return emu_error(cudaErrorNotSupported);
    emu_work work = {"cudaGraphLaunch", {}, {}};
    for (const emu_work &each : graph->works)
        work.words.insert(work.words.end(), each.words.begin(), each.words.end());
    work.run = [graph] {
        for (emu_work &each : graph->works) run_work(each);
    };
    return emu_error(emu_issue(stream, std::move(work)));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    emu_finish_all();
    delete graph;
    return emu_state();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    delete graph;
    return emu_state();
}
