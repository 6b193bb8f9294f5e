//! Which version of the server may follow which: a member upgrades its data directory, and can read
//! those of the version before. Pure.

use std::fmt;

/// Version of the server program. A suffix after the third number is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u64,
    minor: u64,
    patch: u64,
}

/// Why a version may not follow another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is older, and may not be able to read what the newer one wrote.
    Downgrade,
    /// A version between them has to run first.
    Skips,
}

impl Version {
    /// `1.2.3`, also `v1.2.3`, `1.2.3-rc1` and `1.2.3+build`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let numbers = text.split(['-', '+']).next()?;
        let mut numbers = numbers.split('.').map(|part| part.parse().ok());
        let version = Self {
            major: numbers.next()??,
            minor: numbers.next()??,
            patch: numbers.next()??,
        };
        numbers.next().is_none().then_some(version)
    }

    /// The version in the tag of an image; `None` for a digest, and for a tag that is no version.
    pub(crate) fn of_image(image: &str) -> Option<Self> {
        let name = image.split_once('@').map_or(image, |(name, _)| name);
        let (_, tag) = name.rsplit('/').next()?.split_once(':')?;
        Self::parse(tag)
    }

    /// Whether members may be updated from this version to that one: to any of the same minor
    /// version, and to the next one.
    pub(crate) fn may_become(self, to: Self) -> Result<(), Refusal> {
        let (here, there) = ((self.major, self.minor), (to.major, to.minor));
        let next_minor = (self.major, self.minor.saturating_add(1));
        let next_major = (self.major.saturating_add(1), 0);
        if there == here || there == next_minor || there == next_major {
            Ok(())
        } else if there < here {
            Err(Refusal::Downgrade)
        } else {
            Err(Refusal::Skips)
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Refusal {
    /// Message with what to do.
    pub(crate) fn message(self, from: Version, to: Version) -> String {
        match self {
            Self::Downgrade => format!(
                "members have run {from}, and {to} may not be able to read their data; use an \
                 image of {from} or newer"
            ),
            Self::Skips => format!(
                "members run {from}, and {to} skips a version; update to the next minor version \
                 first"
            ),
        }
    }
}

/// The version that every member has run at some time: it only rises, and members that do not
/// answer keep it.
pub(crate) fn cluster_version(
    before: Option<Version>,
    members: &[Option<Version>],
) -> Option<Version> {
    let lowest = members.iter().copied().collect::<Option<Vec<_>>>();
    let lowest = lowest.and_then(|versions| versions.into_iter().min());
    before.max(lowest)
}

/// Why this image may not follow the one that runs, if its tag is a version.
pub(crate) fn refused(cluster: Option<Version>, running: &str, wanted: &str) -> Option<String> {
    let (from, to) = (cluster?, Version::of_image(wanted)?);
    let refusal = from.may_become(to).err().filter(|_| running != wanted)?;
    Some(refusal.message(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn tags_that_are_versions_are_read_and_others_are_not() {
        for (image, expected) in [
            ("dengine:1.2.3", Some("1.2.3")),
            ("registry:5000/a/dengine:v1.2.3-rc1", Some("1.2.3")),
            ("a/dengine:1.2.3@sha256:00", Some("1.2.3")),
            ("a/dengine:dev", None),
            ("registry:5000/dengine", None),
            ("dengine@sha256:00", None),
            ("dengine:1.2", None),
            ("dengine:1.2.3.4", None),
        ] {
            let found = Version::of_image(image).map(|version| version.to_string());
            assert_eq!(found.as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn one_minor_version_at_a_time_and_never_back() {
        for (from, to, expected) in [
            ("1.2.3", "1.2.9", Ok(())),
            ("1.2.3", "1.2.0", Ok(())),
            ("1.2.3", "1.3.7", Ok(())),
            ("1.2.3", "2.0.1", Ok(())),
            ("1.2.3", "1.4.0", Err(Refusal::Skips)),
            ("1.2.3", "2.1.0", Err(Refusal::Skips)),
            ("1.2.3", "3.0.0", Err(Refusal::Skips)),
            ("1.2.3", "1.1.9", Err(Refusal::Downgrade)),
            ("1.2.3", "0.9.0", Err(Refusal::Downgrade)),
        ] {
            let answer = version(from).may_become(version(to));
            assert_eq!(answer, expected, "{from} to {to}");
        }
    }

    #[test]
    fn a_clusters_version_is_the_lowest_and_never_falls() {
        let (old, new) = (Some(version("1.2.0")), Some(version("1.3.0")));
        assert_eq!(cluster_version(None, &[new, old, new]), old);
        assert_eq!(cluster_version(old, &[new, new, new]), new);
        assert_eq!(
            cluster_version(old, &[new, None, new]),
            old,
            "one is silent"
        );
        assert_eq!(cluster_version(new, &[old, new, new]), new);
        assert_eq!(cluster_version(None, &[]), None);
    }

    #[test]
    fn an_image_is_refused_by_its_tag_only() {
        let cluster = Some(version("1.2.0"));
        assert_eq!(refused(cluster, "d:1.2.0", "d:1.3.0"), None);
        assert!(refused(cluster, "d:1.2.0", "d:1.4.0").is_some());
        assert!(refused(cluster, "d:1.2.0", "d:1.1.0").is_some());
        assert_eq!(refused(cluster, "d:1.2.0", "d:dev"), None);
        assert_eq!(
            refused(None, "d:1.2.0", "d:1.4.0"),
            None,
            "nothing is known"
        );
        assert_eq!(refused(cluster, "d:0.1.0", "d:0.1.0"), None, "a wrong tag");
    }
}
