//! Values over the time of a job, in a fixed number of intervals.

use std::collections::BTreeSet;

/// The time of a job, divided into intervals of the same length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Its start, in seconds since the epoch.
    pub start: f64,
    /// Its end, or the present.
    pub end: f64,
    /// The number of intervals.
    pub intervals: usize,
    /// Intervals without a value that do not interrupt a line.
    gap: usize,
}

impl Scale {
    /// Returns the scale of a job that is sampled every `sample` seconds, with at most so many intervals.
    pub fn new(start: f64, end: f64, sample: f64, most: usize) -> Scale {
        let end = end.max(start + 1.0);
        // an interval without a sample would be a gap
        let intervals = ((end - start) / (2.0 * sample.max(0.5))).floor().clamp(1.0, most as f64);
        // samples become rarer in a long job
        Scale { start, end, intervals: intervals as usize, gap: 8 }
    }

    /// Returns the scale of values that a program prints when it likes, in the same time.
    pub fn of_prints(self, most: usize) -> Scale {
        Scale { intervals: ((self.end - self.start).floor().clamp(1.0, most as f64)) as usize, gap: usize::MAX, ..self }
    }

    /// Returns the share of the whole time that has passed at a point, from 0 to 1.
    pub fn share(&self, time: f64) -> f64 {
        ((time - self.start) / (self.end - self.start)).clamp(0.0, 1.0)
    }

    fn interval(&self, time: f64) -> Option<usize> {
        let is_within = time >= self.start - 1.0 && time <= self.end + 1.0;
        is_within.then(|| ((self.share(time) * self.intervals as f64) as usize).min(self.intervals - 1))
    }
}

/// One value over time: the mean of each interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    scale: Scale,
    /// Sum and number of the values of each interval.
    sums: Vec<(f64, u32)>,
    sum: f64,
    count: u32,
    /// The least and the greatest value.
    range: Option<(f64, f64)>,
    /// The newest value with its time.
    last: Option<(f64, f64)>,
    /// The intervals in which something else than a number was printed.
    holes: BTreeSet<usize>,
}

impl Series {
    /// Returns one without values.
    pub fn new(scale: Scale) -> Series {
        Series { scale, sums: Vec::new(), sum: 0.0, count: 0, range: None, last: None, holes: BTreeSet::new() }
    }

    /// Adds a value. One from outside of the job's time, or that is no number, is left out.
    pub fn add(&mut self, time: f64, value: f64) {
        let Some(interval) = self.scale.interval(time).filter(|_| value.is_finite()) else { return };
        if self.sums.is_empty() {
            self.sums = vec![(0.0, 0); self.scale.intervals];
        }
        let (sum, count) = &mut self.sums[interval];
        (*sum, *count) = (*sum + value, count.saturating_add(1));
        (self.sum, self.count) = (self.sum + value, self.count.saturating_add(1));
        let (least, greatest) = self.range.unwrap_or((value, value));
        self.range = Some((least.min(value), greatest.max(value)));
        if self.last.is_none_or(|(newest, _)| time >= newest) {
            self.last = Some((time, value));
        }
    }

    /// Notes that something else than a number was printed, at which the line is interrupted.
    pub fn add_hole(&mut self, time: f64) {
        self.holes.extend(self.scale.interval(time));
    }

    /// Returns where something else than a number was printed, as shares of the time.
    pub fn holes(&self) -> impl Iterator<Item = f64> {
        self.holes.iter().map(|interval| self.middle(*interval))
    }

    fn middle(&self, interval: usize) -> f64 {
        (interval as f64 + 0.5) / self.scale.intervals as f64
    }

    /// Returns the mean of all values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// Returns the least and the greatest value.
    pub fn range(&self) -> Option<(f64, f64)> {
        self.range
    }

    /// Returns the newest value.
    pub fn last(&self) -> Option<f64> {
        self.last.map(|(_, value)| value)
    }

    /// Returns the points of the line, each as the share of the time and the mean, in pieces: between two pieces there
    /// were no values for a while.
    pub fn pieces(&self) -> Vec<Vec<(f64, f64)>> {
        let (mut pieces, mut before) = (Vec::<Vec<_>>::new(), None);
        for (i, (sum, count)) in self.sums.iter().enumerate().filter(|(_, (_, count))| *count > 0) {
            let point = (self.middle(i), sum / f64::from(*count));
            let goes_on = |before| i - before <= self.scale.gap && self.holes.range(before..=i).next().is_none();
            match pieces.last_mut().filter(|_| before.is_some_and(goes_on)) {
                Some(piece) => piece.push(point),
                None => pieces.push(vec![point]),
            }
            before = Some(i);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_interval_has_its_mean() {
        let scale = Scale::new(100.0, 200.0, 5.0, 10);
        let mut series = Series::new(scale);
        for (time, value) in [(101.0, 1.0), (109.0, 3.0), (111.0, 8.0), (199.9, 6.0), (500.0, 99.0), (150.0, f64::NAN)]
        {
            series.add(time, value);
        }
        assert_eq!(series.pieces(), [vec![(0.05, 2.0), (0.15, 8.0), (0.95, 6.0)]]);
        assert_eq!((series.mean(), series.range(), series.last()), (Some(4.5), Some((1.0, 8.0)), Some(6.0)));
        assert_eq!(Series::new(scale).pieces(), Vec::<Vec<_>>::new());
    }

    #[test]
    fn a_line_is_interrupted_where_there_was_nothing() {
        let mut series = Series::new(Scale::new(0.0, 1000.0, 5.0, 100));
        (0..20).chain(60..100).for_each(|i| series.add(f64::from(i) * 10.0, 1.0));
        assert_eq!(series.pieces().iter().map(Vec::len).collect::<Vec<_>>(), [20, 40]);
    }

    #[test]
    fn a_line_is_interrupted_where_there_was_no_number() {
        let mut series = Series::new(Scale::new(0.0, 1000.0, 5.0, 100).of_prints(100));
        (0..100).filter(|i| *i != 50).for_each(|i| series.add(f64::from(i) * 10.0 + 5.0, 1.0));
        series.add_hole(505.0);
        series.add_hole(5000.0);
        assert_eq!(series.pieces().iter().map(Vec::len).collect::<Vec<_>>(), [50, 49]);
        assert_eq!(series.holes().collect::<Vec<_>>(), [0.505]);
    }

    #[test]
    fn a_short_job_has_as_many_intervals_as_samples_allow() {
        assert_eq!(Scale::new(0.0, 60.0, 5.0, 500).intervals, 6);
        assert_eq!(Scale::new(0.0, 86_400.0, 5.0, 500).intervals, 500);
        assert_eq!(Scale::new(5.0, 5.0, 5.0, 500).intervals, 1);
        assert_eq!(Scale::new(5.0, f64::NAN, 5.0, 500).intervals, 1);
    }

    proptest! {
        #[test]
        fn any_value_at_any_time_is_taken(time in any::<f64>(), value in any::<f64>(), end in any::<f64>()) {
            let mut series = Series::new(Scale::new(0.0, end, 5.0, 50));
            series.add(time, value);
            series.pieces();
        }
    }
}
