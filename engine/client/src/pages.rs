//! Reads a range of any size, a page at a time.

use crate::client::Client;
use crate::error::Result;
use crate::types::{KeyValue, RangeQuery};

/// The pages of a range, all of one revision; from [`Client::pages`].
#[derive(Debug)]
pub struct Pages {
    client: Client,
    /// The next page; `None` behind the last.
    next: Option<RangeQuery>,
}

impl Pages {
    pub(crate) fn new(client: Client, query: RangeQuery) -> Self {
        Pages {
            client,
            next: Some(query),
        }
    }

    /// The pairs of the next page, in ascending order of keys; `None` behind the last. After an
    /// error the same page may be asked for again.
    ///
    /// # Errors
    /// As [`Client::range`]. [`Error::RevisionUnavailable`](crate::Error::RevisionUnavailable) if
    /// the revision of the first page was compacted meanwhile: begin again.
    pub async fn next(&mut self) -> Result<Option<Vec<KeyValue>>> {
        let Some(query) = &self.next else {
            return Ok(None);
        };
        let page = self.client.range(query.clone()).await?;
        self.next = match page.kvs.last() {
            Some(last) if page.more => {
                let mut query = query.clone();
                query.behind(&last.key, page.header.revision);
                Some(query)
            }
            _ => None,
        };
        Ok(Some(page.kvs))
    }

    /// The pairs of all pages that are left.
    ///
    /// # Errors
    /// As [`Pages::next`]; what was read before is lost.
    pub async fn all(mut self) -> Result<Vec<KeyValue>> {
        let mut all = Vec::new();
        while let Some(page) = self.next().await? {
            all.extend(page);
        }
        Ok(all)
    }
}
