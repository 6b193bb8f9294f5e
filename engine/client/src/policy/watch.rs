//! How far a watch is told, so that over any number of streams each event is handed on once and
//! none is missed.

/// Where a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchCursor {
    /// The first revision that was not handed on completely; 0: not known yet, the server chooses.
    next: u64,
    /// Events of `next` that were handed on, over all streams: more than none within a fragmented
    /// revision.
    told: usize,
    /// Events of `next` that came on the present stream.
    seen: usize,
}

/// A stream broke the rules of the protocol; nothing of the response was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl WatchCursor {
    /// Begins at a revision; 0: from now on.
    #[must_use]
    pub fn new(start_revision: u64) -> Self {
        Self {
            next: start_revision,
            told: 0,
            seen: 0,
        }
    }

    /// A new stream begins; the revision to ask for.
    pub fn resume(&mut self) -> u64 {
        self.seen = 0;
        self.next
    }

    /// The first revision that was not handed on completely; 0 as long as no stream was ever
    /// created.
    #[must_use]
    pub fn next_revision(&self) -> u64 {
        self.next
    }

    /// The server says from which revision on it tells.
    ///
    /// # Errors
    /// If that is not the one asked for.
    pub fn created(&mut self, first: u64) -> Result<(), Broken> {
        if self.next == 0 {
            self.next = first;
        }
        if self.next != first {
            return Err(Broken(format!(
                "asked for revision {}, but the watch begins at {first}",
                self.next
            )));
        }
        Ok(())
    }

    /// Takes in a response with events. `revisions` are those of its events in order, `header` the
    /// one that the response names, and `fragment` whether more events of it follow. Returns how
    /// many events at the head of the response were handed on before and must be left out.
    ///
    /// # Errors
    /// If the revisions go back or reach beyond the header's.
    pub fn events(
        &mut self,
        revisions: impl IntoIterator<Item = u64>,
        header: u64,
        fragment: bool,
    ) -> Result<usize, Broken> {
        let mut cursor = *self;
        let mut repeated = 0;
        for revision in revisions {
            if revision < cursor.next || revision > header {
                return Err(Broken(format!(
                    "an event of revision {revision}, where {} to {header} were expected",
                    cursor.next
                )));
            }
            if revision > cursor.next {
                cursor = Self::new(revision);
            }
            cursor.seen += 1;
            if cursor.seen > cursor.told {
                cursor.told = cursor.seen;
            } else {
                repeated += 1;
            }
        }
        if !fragment {
            cursor.reach(header)?;
        }
        *self = cursor;
        Ok(repeated)
    }

    /// The server says that everything up to `revision` was told.
    ///
    /// # Errors
    /// If that leaves out the rest of a revision.
    pub fn progress(&mut self, revision: u64) -> Result<(), Broken> {
        if self.next == 0 || revision < self.next {
            return Ok(());
        }
        if self.told > 0 {
            return Err(Broken(format!(
                "progress to {revision} in the middle of revision {}",
                self.next
            )));
        }
        self.reach(revision)
    }

    fn reach(&mut self, revision: u64) -> Result<(), Broken> {
        if self.seen < self.told {
            return Err(Broken(format!(
                "revision {} had {} events, and has {} now",
                self.next, self.told, self.seen
            )));
        }
        let behind = revision.checked_add(1);
        let behind = behind.ok_or_else(|| Broken(format!("there is no revision {revision}")))?;
        *self = Self::new(self.next.max(behind));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(first: u64) -> WatchCursor {
        let mut cursor = WatchCursor::new(0);
        assert_eq!(cursor.resume(), 0);
        cursor.created(first).unwrap();
        cursor
    }

    #[test]
    fn it_resumes_behind_the_last_response() {
        let mut cursor = begun(4);
        assert_eq!(cursor.events([4, 6, 6], 6, false), Ok(0));
        assert_eq!(cursor.resume(), 7);
        cursor.created(7).unwrap();
        cursor.progress(9).unwrap();
        assert_eq!(cursor.resume(), 10);
    }

    #[test]
    fn within_a_fragmented_revision_it_resumes_at_the_event() {
        let mut cursor = begun(4);
        assert_eq!(cursor.events([5, 5, 5], 5, true), Ok(0));
        assert_eq!(cursor.resume(), 5, "the stream broke");
        assert_eq!(cursor.events([5, 5], 5, true), Ok(2));
        assert_eq!(cursor.events([5, 5], 5, false), Ok(1));
        assert_eq!(cursor.resume(), 6);
    }

    #[test]
    fn a_stream_that_leaves_out_or_repeats_is_refused_and_changes_nothing() {
        let mut cursor = begun(4);
        assert!(cursor.created(5).is_err());
        assert!(cursor.events([3], 4, false).is_err());
        assert!(cursor.events([4, 6], 5, false).is_err());
        assert!(cursor.events([5, 4], 5, false).is_err());
        assert_eq!(cursor, begun(4));
        cursor.events([5, 5], 5, true).unwrap();
        assert!(cursor.progress(5).is_err());
        cursor.resume();
        assert!(
            cursor.events([5], 5, false).is_err(),
            "one event is missing"
        );
    }

    #[test]
    fn a_server_that_names_the_last_number_of_all_is_refused() {
        let mut cursor = begun(4);
        assert!(cursor.progress(u64::MAX).is_err());
        assert!(cursor.events([4], u64::MAX, false).is_err());
        assert_eq!(cursor, begun(4));
    }

    #[test]
    fn progress_never_goes_back() {
        let mut cursor = begun(4);
        cursor.progress(3).unwrap();
        assert_eq!(cursor.next_revision(), 4);
    }
}
