//! What pods say to each other: a line of JSON each, over TCP. An empty line is a sign of life.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

/// How often a sign of life is given.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Who says nothing for so long is lost.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Longest line; a histogram has less than 24,000 counts.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// What waits to be read.
const QUEUE: usize = 16;
/// How long the last words may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// What the first pod tells another.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", tag = "order")]
pub(super) enum Order {
    /// It takes part.
    Welcome,
    /// It does not; why.
    Refused { why: String },
    /// Connect to the target for the workload of this number.
    Connect {
        task: usize,
        endpoints: Vec<String>,
        /// What each key begins with.
        folder: String,
    },
    /// Wait until the keys are seen that were written up to this revision.
    Settle { task: usize, revision: u64 },
    /// Make clients ready.
    Load {
        task: usize,
        /// Which repetition is measured; the warm-up if none.
        repetition: Option<u64>,
    },
    /// Begin.
    Go,
    /// End the load; why.
    Stop { why: String },
    /// All is done.
    Bye,
}

/// What another pod tells the first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", tag = "answer")]
pub(super) enum Answer {
    /// It is there.
    Hello {
        index: u32,
        /// Its flags: only pods that do the same can do it together.
        flags: String,
        node: Option<String>,
    },
    /// An order was carried out.
    Done,
    /// It could not be; why.
    Failed { why: String },
    /// The clients are ready.
    Ready,
    /// They begin.
    Begun,
    /// The load has ended.
    Ended(Box<Ended>),
    /// It has to end; why.
    Leaving { why: String },
}

/// What is said over a line.
pub(super) trait Said: DeserializeOwned + Send + 'static {
    /// Why nothing comes after this.
    fn last_words(&self) -> Option<&str> {
        None
    }
}

impl Said for Order {}

impl Said for Answer {
    fn last_words(&self) -> Option<&str> {
        match self {
            Answer::Leaving { why } => Some(why),
            Answer::Hello { .. }
            | Answer::Done
            | Answer::Failed { .. }
            | Answer::Ready
            | Answer::Begun
            | Answer::Ended(_) => None,
        }
    }
}

/// What came of a pod's part of a load.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ended {
    /// Latencies, µs, in HdrHistogram's format V2 with deflate, in base64.
    pub latency_us: String,
    pub errors: u64,
    pub first_error: Option<String>,
    /// From when it was told to begin until it did.
    pub late: Duration,
    pub elapsed: Duration,
    pub revision: u64,
    pub cpu: Duration,
}

/// A histogram as text.
pub(super) fn packed(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .expect("a histogram of these bounds fits into memory");
    STANDARD.encode(bytes)
}

/// The histogram of a text.
///
/// # Errors
/// If it holds none.
pub(super) fn unpacked(text: &str) -> anyhow::Result<Histogram<u64>> {
    let bytes = STANDARD.decode(text)?;
    let read = Deserializer::new().deserialize(&mut &bytes[..]);
    read.map_err(|error| anyhow::anyhow!("no histogram: {error}"))
}

/// One end of a connection between two pods.
pub(super) struct Line<T, F> {
    to: mpsc::UnboundedSender<T>,
    from: mpsc::Receiver<(Instant, F)>,
    lost: watch::Receiver<Option<String>>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl<T, F> Line<T, F>
where
    T: Serialize + Send + 'static,
    F: Said,
{
    pub(super) fn over(stream: TcpStream) -> io::Result<Self> {
        // Each line is waited for.
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        let (to, to_write) = mpsc::unbounded_channel();
        let (arrived, from) = mpsc::channel(QUEUE);
        let (told, lost) = watch::channel(None);
        let reader = tokio::spawn(async move {
            let why = read_all(read, arrived).await;
            told.send_replace(Some(why));
            told.closed().await;
        });
        let writer = tokio::spawn(write_all(write, to_write));
        Ok(Self {
            to,
            from,
            lost,
            reader,
            writer,
        })
    }

    /// If the other end is gone, reading says so.
    pub(super) fn send(&self, message: T) {
        let _ = self.to.send(message);
    }

    /// The next message, and when it arrived.
    ///
    /// # Errors
    /// Why there will be none.
    pub(super) async fn next(&mut self) -> Result<(Instant, F), String> {
        match self.from.recv().await {
            Some(message) => Ok(message),
            None => Err(lost(self.lost.clone()).await),
        }
    }

    /// Says why the other end is lost once it is.
    pub(super) fn lost(&self) -> watch::Receiver<Option<String>> {
        self.lost.clone()
    }

    /// Sends what waits, and ends.
    pub(super) async fn close(self) {
        let Self {
            to, reader, writer, ..
        } = self;
        drop(to);
        let _ = timeout(CLOSE_LIMIT, writer).await;
        reader.abort();
    }
}

/// Resolves with what a watch says once it says anything.
pub(super) async fn lost(mut watched: watch::Receiver<Option<String>>) -> String {
    match watched.wait_for(Option::is_some).await {
        Ok(why) => why.clone().unwrap_or_default(),
        Err(_) => "the connection was given up".to_owned(),
    }
}

/// Until there is nothing more to read; why.
async fn read_all<F: Said>(read: OwnedReadHalf, arrived: mpsc::Sender<(Instant, F)>) -> String {
    let (mut reader, mut line) = (BufReader::new(read), Vec::new());
    loop {
        match timeout(SILENCE_MAX, read_line(&mut reader, &mut line)).await {
            Err(_) => return format!("nothing was heard of it for {SILENCE_MAX:?}"),
            Ok(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                return "its connection ended".to_owned();
            }
            Ok(Err(error)) => return format!("its connection failed: {error}"),
            Ok(Ok(())) if line == b"\n" => {}
            Ok(Ok(())) => match serde_json::from_slice::<F>(&line) {
                Ok(message) => {
                    if let Some(why) = message.last_words() {
                        return why.to_owned();
                    }
                    let message = (Instant::now(), message);
                    if arrived.send(message).await.is_err() {
                        return "nobody listens to it any more".to_owned();
                    }
                }
                Err(error) => return format!("it said what cannot be read: {error}"),
            },
        }
    }
}

async fn read_line(reader: &mut BufReader<OwnedReadHalf>, line: &mut Vec<u8>) -> io::Result<()> {
    line.clear();
    let mut bounded = reader.take(LINE_BYTES_MAX);
    match bounded.read_until(b'\n', line).await? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ if line.ends_with(b"\n") => Ok(()),
        read if read as u64 == LINE_BYTES_MAX => {
            Err(io::Error::new(ErrorKind::InvalidData, "a line is too long"))
        }
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

async fn write_all<T: Serialize>(
    mut write: OwnedWriteHalf,
    mut messages: mpsc::UnboundedReceiver<T>,
) {
    let mut alive = interval(ALIVE_EVERY);
    loop {
        let mut line = tokio::select! {
            message = messages.recv() => match message {
                Some(message) => serde_json::to_vec(&message).expect("messages are plain data"),
                None => break,
            },
            _ = alive.tick() => Vec::new(),
        };
        line.push(b'\n');
        if write.write_all(&line).await.is_err() {
            // The reader sees why.
            return;
        }
    }
    let _ = write.shutdown().await;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::net::TcpListener;

    use super::*;
    use crate::load::histogram;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_histogram_survives_being_text(
            values in prop::collection::vec(0..4_000_000_000_u64, 0..300),
        ) {
            let mut before = histogram();
            values.iter().for_each(|&value| before.saturating_record(value));
            let after = unpacked(&packed(&before)).unwrap();
            prop_assert_eq!(&after, &before);
            prop_assert_eq!((after.min(), after.max()), (before.min(), before.max()));
        }
    }

    #[test]
    fn the_fullest_histogram_fits_into_a_line() {
        let mut full = histogram();
        let mut value = 1;
        while value < 3_600_000_000 {
            full.record_n(value, u64::MAX >> 24).unwrap();
            value = full.next_non_equivalent(value);
        }
        assert!((packed(&full).len() as u64) < LINE_BYTES_MAX / 2);
    }

    #[test]
    fn what_is_no_histogram_is_refused() {
        for text in ["", "?", "aGVsbG8="] {
            assert!(unpacked(text).is_err(), "{text}");
        }
    }

    async fn lines() -> (Line<Order, Answer>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (other, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (Line::over(accepted.unwrap().0).unwrap(), other.unwrap())
    }

    #[tokio::test]
    async fn messages_arrive_between_signs_of_life_and_the_end_has_a_reason() {
        let (mut line, mut other) = lines().await;
        other
            .write_all(b"\n\n{\"answer\":\"done\"}\n\n")
            .await
            .unwrap();
        let (_, answer) = line.next().await.unwrap();
        assert_eq!(answer, Answer::Done);
        drop(other);
        assert_eq!(line.next().await, Err("its connection ended".to_owned()));
    }

    #[tokio::test]
    async fn what_is_said_last_still_arrives() {
        let (line, mut other) = lines().await;
        line.send(Order::Bye);
        line.close().await;
        let mut said = String::new();
        other.read_to_string(&mut said).await.unwrap();
        assert_eq!(said.trim(), "{\"order\":\"bye\"}");
    }

    #[tokio::test]
    async fn a_stranger_that_says_anything_else_is_lost() {
        let (mut line, mut other) = lines().await;
        other.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let why = line.next().await.unwrap_err();
        assert!(why.starts_with("it said what cannot be read"), "{why}");
    }

    #[tokio::test]
    async fn a_line_without_end_is_bounded() {
        let (mut line, mut other) = lines().await;
        let endless = vec![b'x'; LINE_BYTES_MAX as usize];
        other.write_all(&endless).await.unwrap();
        let why = line.next().await.unwrap_err();
        assert!(why.contains("too long"), "{why}");
    }
}
