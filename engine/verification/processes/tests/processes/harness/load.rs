//! Clients that write and read all the time, and what these tests want of them.

use std::iter::repeat_n;
use std::time::Duration;

use dengine_client::Client;

use super::eventually;

const WRITERS: usize = 8;
const READERS: usize = 4;

/// Writers and readers under way.
pub(crate) struct Load(dengine_load::Load);

impl Load {
    /// Begins writing distinct keys and one counter, and reading the counter.
    pub(crate) fn start(client: &Client) -> Self {
        let clients = |count| repeat_n(client.clone(), count).collect();
        let load = dengine_load::Load::start(clients(WRITERS), clients(READERS), Duration::ZERO);
        Self(load)
    }

    /// Waits until so many more writes are acknowledged, and so many more reads answered.
    pub(crate) async fn progress(&self, count: usize) {
        let now = || (self.0.acknowledged(), self.0.reads());
        let (writes, reads) = now();
        eventually("writes are acknowledged and reads answered", || async {
            let (written, read) = now();
            (written >= writes + count && read >= reads + count).then_some(())
        })
        .await;
    }

    /// Ends the load and checks that everything that was promised is there, and was done once.
    pub(crate) async fn finish(self, client: &Client) {
        let outcome = self.0.finish(client).await.unwrap();
        assert_eq!(outcome.unexpected, None);
        assert_eq!(outcome.lost, [""; 0], "acknowledged and gone");
        assert!(
            outcome.acknowledged > 0,
            "nothing was acknowledged, so nothing was shown"
        );
        if let Err(violation) = outcome.verdict {
            panic!("{violation}");
        }
    }
}
