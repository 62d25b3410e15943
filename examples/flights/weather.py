"""Hourly weather at the three New York airports, as a table that flights look themselves up in."""

import csv

import numpy as np

# Column of weather.csv, and how to bring it to about -1..1.
SCALES = {
    "temp": (55, 30),
    "humid": (62, 30),
    "wind_speed": (10, 10),
    "precip": (0, 0.1),
    "pressure": (1017, 10),
    "visib": (10, 5),
}
COLUMNS = len(SCALES)
HOURS = 365 * 24
AIRPORTS = "EJL"  # first letters of EWR, JFK, LGA
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def load(path):
    """float32 [airport, hour of the year, COLUMNS]; hours and readings that are missing repeat the one before."""
    table = np.full((len(AIRPORTS), HOURS + 24, COLUMNS), np.nan, np.float32)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            hour = (sum(MONTH_DAYS[: int(row["month"]) - 1]) + int(row["day"]) - 1) * 24 + int(row["hour"])
            table[AIRPORTS.index(row["origin"][0]), hour] = [
                np.nan if row[name] == "NA" else (float(row[name]) - middle) / spread
                for name, (middle, spread) in SCALES.items()
            ]
    for airport in table:
        for column in airport.T:
            last = np.maximum.accumulate(np.where(np.isnan(column), 0, np.arange(len(column))))
            column[:] = np.nan_to_num(column[last])
    return np.clip(table, -3, 3)


def columns(table, origin_letter, hour):
    """The weather of each flight at its airport in its scheduled hour, one array a column."""
    airport = (origin_letter == ord("J")) + 2 * (origin_letter == ord("L"))
    return list(table[airport, hour].T)
