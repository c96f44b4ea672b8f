//! Lists of numbers as people write them: `2,3` and `0-1,4`.

/// Most numbers of a list: all VLANs.
const MOST: usize = 4094;

/// Parses a list into its numbers, in order.
///
/// # Errors
/// Names the part that is not a number, or that ends before it begins; there are too many.
pub fn numbers(text: &str) -> Result<Vec<u16>, String> {
    let number =
        |word: &str| word.trim().parse::<u16>().map_err(|_| format!("{word:?} is not a number"));
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("{part} ends before it begins"));
        }
        if all.len() + usize::from(last - first) >= MOST {
            return Err(format!("these are more than {MOST} numbers"));
        }
        all.extend(first..=last);
    }
    Ok(all)
}

/// Prints a list as people write it: `10-20,30`.
#[must_use]
pub fn text(numbers: &[u16]) -> String {
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let parts = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_make_a_list() {
        assert_eq!(numbers("2,3"), Ok(vec![2, 3]));
        assert_eq!(numbers("0-2, 7"), Ok(vec![0, 1, 2, 7]));
        assert_eq!(text(&[0, 1, 2, 7, 9, 10]), "0-2,7,9-10");
        assert_eq!(numbers("1-4094").map(|all| all.len()), Ok(MOST));
        for (text, why) in [
            ("", "not a number"),
            ("1-", "not a number"),
            ("3-1", "ends before"),
            ("x", "not a number"),
            ("0-65535", "more than 4094"),
            ("1-4094,1", "more than 4094"),
        ] {
            assert!(numbers(text).unwrap_err().contains(why), "{text}");
        }
    }
}
