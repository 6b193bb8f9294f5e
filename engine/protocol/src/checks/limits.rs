//! What a request may hold.

use bytes::Bytes;
use tonic::Status;

/// Bounds on single requests and their answers. They are settings of a member
/// (`dengine::config::Limits`), which also has their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Largest key.
    pub max_key_bytes: usize,
    /// Largest value.
    pub max_value_bytes: usize,
    /// Most bytes of keys and values in one answer.
    pub max_range_bytes: usize,
    /// Most entries in each list of a batch.
    pub max_batch_operations: usize,
    /// Largest batch, as a whole.
    pub max_batch_request_bytes: usize,
}

impl RequestLimits {
    /// Largest encoded write that these limits let through, a swap or a batch: a key, an expected
    /// and a new value, or a whole batch, and what surrounds them.
    #[must_use]
    pub const fn max_write_bytes(&self) -> usize {
        let swap = 2 * (self.max_key_bytes + self.max_value_bytes);
        let batch = self.max_batch_bytes(3 * self.max_batch_operations);
        let swap = swap + REQUEST_OVERHEAD_BYTES;
        if swap > batch { swap } else { batch }
    }

    /// Largest encoded batch of so many comparisons and operations that these limits let through.
    #[must_use]
    pub const fn max_batch_bytes(&self, elements: usize) -> usize {
        self.max_batch_request_bytes + elements * OPERATION_OVERHEAD_BYTES + REQUEST_OVERHEAD_BYTES
    }

    /// Checks the key of a request.
    ///
    /// # Errors
    /// It is empty or too long.
    #[inline]
    pub fn check_key(&self, key: &Bytes) -> Result<(), Status> {
        if key.is_empty() {
            return Err(Status::invalid_argument(
                "the key is empty; a key has at least one byte",
            ));
        }
        check_length("key", key, self.max_key_bytes, "--max-key-bytes")
    }

    /// Checks the first key of a read: behind the longest key there is, one more byte, so that the
    /// next page can begin there.
    ///
    /// # Errors
    /// It is empty or too long.
    #[inline]
    pub fn check_range_start(&self, key: &Bytes, range_end: &Bytes) -> Result<(), Status> {
        let behind_the_longest = !range_end.is_empty() && key.len() == self.max_key_bytes + 1;
        match behind_the_longest {
            true => Ok(()),
            false => self.check_key(key),
        }
    }

    /// Checks the end of a range, which may be empty.
    ///
    /// # Errors
    /// It is too long.
    #[inline]
    pub fn check_range_end(&self, range_end: &Bytes) -> Result<(), Status> {
        check_length(
            "range_end",
            range_end,
            self.max_key_bytes,
            "--max-key-bytes",
        )
    }

    /// Checks the value of a request, which may be empty.
    ///
    /// # Errors
    /// It is too long.
    #[inline]
    pub fn check_value(&self, value: &Bytes) -> Result<(), Status> {
        check_length("value", value, self.max_value_bytes, "--max-value-bytes")
    }
}

/// Room for field tags, lengths and numbers of one request or log entry; measured ones are below
/// 100 bytes.
const REQUEST_OVERHEAD_BYTES: usize = 1024;
/// What one operation of a batch may take more in a log entry than in its request.
const OPERATION_OVERHEAD_BYTES: usize = 16;

#[inline]
fn check_length(what: &str, bytes: &Bytes, limit: usize, flag: &str) -> Result<(), Status> {
    if bytes.len() > limit {
        return Err(Status::invalid_argument(format!(
            "the {what} has {} bytes; this member takes at most {limit} ({flag})",
            bytes.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) const TEST_LIMITS: RequestLimits = RequestLimits {
    max_key_bytes: 128,
    max_value_bytes: 256,
    max_range_bytes: 4096,
    max_batch_operations: 8,
    max_batch_request_bytes: 1024,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn check(result: Result<(), Status>, expect: &str) {
        match result {
            Ok(()) => assert_eq!(expect, ""),
            Err(status) => assert!(status.message().contains(expect), "{status}"),
        }
    }

    #[test]
    fn sizes_are_checked_at_the_limit() {
        let limits = RequestLimits {
            max_key_bytes: 2,
            max_value_bytes: 3,
            ..TEST_LIMITS
        };
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        check(limits.check_key(&bytes("ab")), "");
        check(limits.check_key(&bytes("abc")), "--max-key-bytes");
        check(limits.check_key(&bytes("")), "empty");
        check(limits.check_range_end(&bytes("")), "");
        check(limits.check_range_end(&bytes("abc")), "at most 2");
        check(limits.check_value(&bytes("")), "");
        check(limits.check_value(&bytes("abc")), "");
        check(limits.check_value(&bytes("abcd")), "has 4 bytes");
    }
}
