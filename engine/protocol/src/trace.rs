//! The trace that a call belongs to, as [W3C Trace Context](https://www.w3.org/TR/trace-context/)
//! writes it: in a header of each call, or in a field of a call in a frame.
//!
//! Calls may be traced or not, so what is wrong here is ignored and never refused.

use std::fmt;

/// Of the version that is written here: `00-`, the trace, the span and the flags.
const LEN: usize = 55;
/// The only flag that means something here.
const SAMPLED: u8 = 1;

/// The span within which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Not all zeros.
    pub trace_id: [u8; 16],
    /// Of the caller's span; not all zeros.
    pub span_id: [u8; 8],
    /// Whether the caller records its span.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads it; `None` if there is none, or none that makes sense. Of versions to come it reads
    /// what this one has.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let (known, rest) = text.split_at_checked(LEN)?;
        let [version] = hex(&known[..2])?;
        let is_known = version == 0 && rest.is_empty();
        let is_later = (1..0xff).contains(&version) && matches!(rest.first(), None | Some(b'-'));
        let has_dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        if !(is_known || is_later) || !has_dashes {
            return None;
        }
        let (trace_id, span_id) = (hex(&known[3..35])?, hex(&known[36..52])?);
        let [flags] = hex(&known[53..])?;
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self {
            trace_id,
            span_id,
            sampled: flags & SAMPLED != 0,
        })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace_id = u128::from_be_bytes(self.trace_id);
        let span_id = u64::from_be_bytes(self.span_id);
        let flags = u8::from(self.sampled);
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    }
}

/// Of digits in lower case, as many as are needed.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_read() {
        let parent = TraceParent::parse(SAMPLE).unwrap();
        assert!(parent.sampled);
        assert_eq!(parent.span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        assert_eq!(parent.to_string(), SAMPLE);
        let unsampled = TraceParent {
            sampled: false,
            ..parent
        };
        let text = unsampled.to_string();
        assert!(text.ends_with("-00"), "{text}");
        assert_eq!(TraceParent::parse(&text), Some(unsampled));
    }

    #[test]
    fn other_flags_and_later_versions_change_nothing() {
        for same in [
            SAMPLE.replace("-01", "-ff"),
            SAMPLE.replacen("00", "42", 1),
            SAMPLE.replacen("00", "42", 1) + "-more",
        ] {
            assert_eq!(
                TraceParent::parse(&same),
                TraceParent::parse(SAMPLE),
                "{same}"
            );
        }
    }

    #[test]
    fn what_is_of_another_form_is_none() {
        for other in [
            String::new(),
            "garbage".to_owned(),
            "é".repeat(40),
            SAMPLE.to_uppercase(),
            SAMPLE.replace('-', "_"),
            SAMPLE.replacen("00", "ff", 1),
            SAMPLE.to_owned() + "-more",
            SAMPLE.replacen("00", "42", 1) + "more",
            SAMPLE[..LEN - 1].to_owned(),
            SAMPLE.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            SAMPLE.replace("b7ad6b7169203331", &"0".repeat(16)),
            SAMPLE.replace('w', "g").replace("b7", "zz"),
        ] {
            assert_eq!(TraceParent::parse(&other), None, "{other}");
        }
    }
}
