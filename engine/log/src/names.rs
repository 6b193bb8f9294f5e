//! The names of the log's files.

/// The kind of a file in the log's directory, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A segment of the log.
    Segment(u64),
    /// A file of a segment's size that is ready to become a segment.
    Spare(u64),
    /// A spare that was not finished when the process ended.
    Unfinished(u64),
}

impl Name {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (digits, kind) = name.split_once('.')?;
        let number = digits.parse().ok()?;
        let parsed = match kind {
            "segment" => Self::Segment(number),
            "spare" => Self::Spare(number),
            "tmp" => Self::Unfinished(number),
            _ => return None,
        };
        // `u64` parses "+1" too, which is never written.
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Segment(number) => write!(f, "{number:020}.segment"),
            Self::Spare(number) => write!(f, "{number:020}.spare"),
            Self::Unfinished(number) => write!(f, "{number:020}.tmp"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_names_are_parsed_and_others_are_not() {
        for name in [Name::Segment(1), Name::Spare(u64::MAX), Name::Unfinished(0)] {
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        for name in [
            "1.segment",
            "lost+found",
            "+0000000000000000001.segment",
            "x.segment",
            "",
        ] {
            assert_eq!(Name::parse(name), None);
        }
    }
}
