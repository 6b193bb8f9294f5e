//! Kubernetes' quantities, as far as needed to compare two of them. Pure.
//!
//! Not `kube_quantity` 0.9: it panics on large sizes that a spec may hold (`9999999999E` beside
//! `512Mi`), reads `Gi` as 0, and takes `128974848` for another amount than `123Mi`.

/// Value of a quantity in its base unit, such as bytes or cores; `None` if it is not a quantity.
///
/// A float is exact enough: it distinguishes sizes that differ by a byte up to petabytes.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    Some(number * factor(suffix)?)
}

fn factor(suffix: &str) -> Option<f64> {
    let binary = |power: i32| Some(1024_f64.powi(power));
    let decimal = |power: i32| Some(10_f64.powi(power));
    match suffix {
        "" => Some(1.0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => decimal(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

/// Whether two texts are the same quantity.
pub(crate) fn equal(a: &str, b: &str) -> bool {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => (a - b).abs() <= a.abs() * 1e-12,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_amounts_are_equal_in_every_notation() {
        for (a, b) in [
            ("1Gi", "1024Mi"),
            ("1", "1000m"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1k"),
            ("0.1", "100m"),
            ("128974848", "123Mi"),
        ] {
            assert!(equal(a, b), "{a} {b}");
        }
        assert!(!equal("1Gi", "1G"));
        assert!(!equal("plenty", "plenty"));
    }

    #[test]
    fn only_quantities_parse() {
        for bad in ["", "Gi", "1 Gi", "1gi", "1e", "x"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
