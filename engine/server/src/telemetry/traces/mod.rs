//! Traces of single writes, for OpenTelemetry: one shows how long a write was in each stage.
//!
//! A write is sampled where it arrives, by a ratio or because its caller's span is; a member that
//! passes it on says so to the leader. The stages are on several threads, each of which notes when
//! its own began and ended ([`TracedWrite`]); spans are made of that when the write is answered
//! ([`spans`]), by the task that sends them ([`export`]).
//!
//! While there is no collector, a write costs the look at one option.
//!
//! What may not live here: anything that makes a write wait. Whoever notes a time takes a lock that
//! is held for no longer than that, and what finds no room in the queue is dropped.

mod export;
mod spans;
mod write;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dengine_protocol::trace::TraceParent;
use dengine_types::{ClusterId, MemberId};
use metrics::counter;
use opentelemetry_sdk::trace::RandomIdGenerator;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use self::export::{Export, collector};
pub(crate) use self::write::{TracedWrite, Traces};
use super::metrics as names;
use crate::config::Config;

/// Traces that wait to be sent. Each takes about a quarter of a KiB.
const QUEUE_MAX: usize = 4096;

/// Which member a span is of: known once it has an identity.
pub(crate) type Identity = (ClusterId, MemberId);

/// Begins traces. Clones share one queue. The default traces nothing.
#[derive(Clone, Default)]
pub(crate) struct Tracer(Option<Arc<Tracing>>);

struct Tracing {
    sample_ratio: f64,
    ids: RandomIdGenerator,
    queue: mpsc::Sender<Finished>,
    stop: CancellationToken,
    export: Mutex<Option<JoinHandle<()>>>,
}

/// A write that was answered.
struct Finished {
    write: Arc<TracedWrite>,
    at: Instant,
    code: Code,
}

/// Where a call comes from, as far as that decides whether it is traced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    /// The caller's span, if it names one.
    pub(crate) span: Option<TraceParent>,
    /// Another member passed the call on, and would have named its span had it sampled the call.
    pub(crate) passed_on: bool,
}

impl Parent {
    fn is_sampled(&self, ratio: f64) -> bool {
        match self.span {
            Some(span) => span.sampled,
            None => !self.passed_on && rand::random::<f64>() < ratio,
        }
    }
}

impl Tracer {
    /// Sends spans to the collector that the settings name, if they name one. Within the runtime
    /// that is to do so.
    pub(crate) fn start(
        config: &Config,
        identity: impl Fn() -> Identity + Send + Sync + 'static,
    ) -> Self {
        if config.tracing.endpoint.is_empty() {
            return Self::default();
        }
        let exporter = match collector(config) {
            Ok(exporter) => exporter,
            Err(error) => {
                // Tracing never keeps a member from its work.
                tracing::error!(%error, "no writes are traced: spans can't be sent as it was set");
                return Self::default();
            }
        };
        let (queue, finished) = mpsc::channel(QUEUE_MAX);
        let stop = CancellationToken::new();
        let export = Export::new(exporter, identity);
        let export = tokio::spawn(export.run(finished, stop.clone()));
        Self::with(config.tracing.sample_ratio, queue, stop, Some(export))
    }

    fn with(
        sample_ratio: f64,
        queue: mpsc::Sender<Finished>,
        stop: CancellationToken,
        export: Option<JoinHandle<()>>,
    ) -> Self {
        Self(Some(Arc::new(Tracing {
            sample_ratio,
            ids: RandomIdGenerator::default(),
            queue,
            stop,
            export: Mutex::new(export),
        })))
    }

    /// Whether anything may be traced.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins to trace a call of `method` that arrived then, if it is sampled.
    #[inline]
    pub(crate) fn begin(
        &self,
        method: &'static str,
        arrived: Instant,
        parent: impl FnOnce() -> Parent,
    ) -> Option<Begun> {
        let tracing = self.0.as_ref()?;
        let parent = parent();
        parent.is_sampled(tracing.sample_ratio).then(|| {
            let write = TracedWrite::new(&tracing.ids, method, arrived, parent.span);
            Begun {
                write: Arc::new(write),
                tracing: Arc::clone(tracing),
                code: Code::Cancelled,
            }
        })
    }

    /// Sends what is queued, for no longer than `patience`; what ends later is not sent.
    pub(crate) async fn end(&self, patience: Duration) {
        let Some(tracing) = &self.0 else {
            return;
        };
        tracing.stop.cancel();
        let export = tracing.export.lock();
        let export = export.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(export) = export
            && tokio::time::timeout(patience, export).await.is_err()
        {
            tracing::warn!("the collector did not take the last spans in time");
        }
    }
}

/// A call that is traced, for whoever answers it. If that is dropped, its caller has left.
pub(crate) struct Begun {
    write: Arc<TracedWrite>,
    tracing: Arc<Tracing>,
    code: Code,
}

impl Begun {
    /// For those who carry it out.
    pub(crate) fn write(&self) -> &Arc<TracedWrite> {
        &self.write
    }

    /// It was answered with this.
    pub(crate) fn answered(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let finished = Finished {
            write: Arc::clone(&self.write),
            at: Instant::now(),
            code: self.code,
        };
        if self.tracing.queue.try_send(finished).is_err() {
            counter!(names::TRACES_DROPPED_TOTAL).increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(ratio: f64, room: usize) -> (Tracer, mpsc::Receiver<Finished>) {
        let (queue, finished) = mpsc::channel(room);
        let stop = CancellationToken::new();
        (Tracer::with(ratio, queue, stop, None), finished)
    }

    fn begin(tracer: &Tracer, span: Option<&str>, passed_on: bool) -> Option<Begun> {
        let span = span.and_then(TraceParent::parse);
        tracer.begin("Put", Instant::now(), || Parent { span, passed_on })
    }

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[test]
    fn a_caller_decides_for_its_own_calls_and_the_ratio_for_all_others() {
        for (ratio, span, passed_on, is_sampled) in [
            (0.0, None, false, false),
            (1.0, None, false, true),
            (0.0, Some(SAMPLED), false, true),
            (1.0, Some(UNSAMPLED), false, false),
            (1.0, Some("nonsense"), false, true),
            // The member that passed it on did not sample it.
            (1.0, None, true, false),
            (0.0, Some(SAMPLED), true, true),
        ] {
            let (tracer, _finished) = tracer(ratio, 1);
            let begun = begin(&tracer, span, passed_on);
            assert_eq!(begun.is_some(), is_sampled, "{ratio} {span:?} {passed_on}");
        }
    }

    #[test]
    fn about_as_many_are_sampled_as_the_ratio_says() {
        let (tracer, mut finished) = tracer(0.1, 10_000);
        let sampled = (0..10_000).filter(|_| begin(&tracer, None, false).is_some());
        assert!((500..1_500).contains(&sampled.count()));
        assert!(finished.try_recv().is_ok());
    }

    #[test]
    fn without_a_collector_nothing_is_looked_at() {
        let begun = Tracer::default().begin("Put", Instant::now(), || panic!("it is off"));
        assert!(begun.is_none());
    }

    #[test]
    fn what_is_answered_says_so_and_what_is_left_too() {
        let (tracer, mut finished) = tracer(1.0, 2);
        begin(&tracer, None, false).unwrap().answered(Code::Ok);
        drop(begin(&tracer, None, false));
        let mut code = || finished.try_recv().unwrap().code;
        assert_eq!([code(), code()], [Code::Ok, Code::Cancelled]);
    }

    /// A collector that is slow costs spans, and nobody waits for it.
    #[test]
    fn what_finds_no_room_is_dropped() {
        let (tracer, mut finished) = tracer(1.0, 1);
        for _ in 0..3 {
            begin(&tracer, None, false).unwrap().answered(Code::Ok);
        }
        assert!(finished.try_recv().is_ok());
        assert!(finished.try_recv().is_err());
    }
}
