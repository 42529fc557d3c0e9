"""A clinic's database: patients, doctors and visits."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from rllm_gym.envs.mcp.domains.sqlite.state import DatabaseState, asked, by_id
from rllm_gym.envs.mcp.task import Call, FinalAnswer, InfeasibleReport, ToolTask, ToolTaskTemplate
from rllm_gym.envs.mcp.wording import CITIES, LAST_NAMES, a_day, a_today, people

SCHEMA = """
CREATE TABLE patients (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT NOT NULL, born_on TEXT NOT NULL);
CREATE TABLE doctors (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, specialty TEXT NOT NULL);
CREATE TABLE visits (id INTEGER PRIMARY KEY, patient_id INTEGER NOT NULL REFERENCES patients(id),
    doctor_id INTEGER NOT NULL REFERENCES doctors(id), visited_on TEXT NOT NULL, minutes INTEGER NOT NULL,
    outcome TEXT NOT NULL);
"""
SPECIALTIES = ("cardiology", "dermatology", "neurology", "orthopaedics", "paediatrics", "radiology")
OUTCOMES = ("completed", "no-show", "rescheduled")
_SIZES = {1: (8, 4, 40), 2: (20, 8, 110), 3: (45, 14, 260)}


def build(seed: int, difficulty: int) -> DatabaseState:
    rng = Random(f"sqlite/clinic/{seed}/{difficulty}")
    patient_count, doctor_count, visit_count = _SIZES[difficulty]
    today = a_today(rng)
    cities = rng.sample(CITIES, 2 + difficulty)
    patients = [
        {
            "id": number,
            "name": name,
            "city": rng.choice(cities),
            "born_on": a_day(rng, today - timedelta(days=80 * 365), today - timedelta(days=365)).isoformat(),
        }
        for number, name in enumerate(people(rng, patient_count), start=1)
    ]
    doctors = [
        {"id": number, "name": f"Dr. {name}", "specialty": SPECIALTIES[number % len(SPECIALTIES)]}
        for number, name in enumerate(rng.sample(LAST_NAMES, doctor_count), start=1)
    ]
    visits = [
        {
            "id": number,
            "patient_id": rng.choice(patients)["id"],
            "doctor_id": rng.choice(doctors)["id"],
            "visited_on": a_day(rng, today - timedelta(days=500), today - timedelta(days=1)).isoformat(),
            "minutes": 5 * rng.randint(2, 14),
            "outcome": rng.choices(OUTCOMES, (7, 1, 2))[0],
        }
        for number in range(1, visit_count + 1)
    ]
    return DatabaseState(SCHEMA, {"patients": patients, "doctors": doctors, "visits": visits}, today)


def last_visit(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    patients, doctors = by_id(state.rows["patients"]), by_id(state.rows["doctors"])
    visits = state.rows["visits"]
    example = rng.choice(visits)
    patient, doctor, outcome = patients[example["patient_id"]], doctors[example["doctor_id"]], example["outcome"]
    found = [v for v in visits if v["patient_id"] == patient["id"] and v["outcome"] == outcome]
    where, to_whom = f"p.name = '{patient['name']}' AND v.outcome = '{outcome}'", ""
    if difficulty > 1:
        found = [v for v in found if doctors[v["doctor_id"]]["specialty"] == doctor["specialty"]]
        where += f" AND d.specialty = '{doctor['specialty']}'"
        to_whom = f" to a doctor of {doctor['specialty']}"
    first = rng.random() < 0.5
    ordered = sorted(v["visited_on"] for v in found)
    day = ordered[0 if first else -1]
    goal = rng.choice(
        (
            f"On what day was the {'first' if first else 'most recent'} visit of {patient['name']}{to_whom} with the "
            f"outcome {outcome}? Answer with the date as YYYY-MM-DD.",
            f"Find the {'earliest' if first else 'latest'} visit{to_whom} of the patient {patient['name']} whose "
            f"outcome is {outcome}, and give its date (YYYY-MM-DD).",
        )
    )
    query = (
        f"SELECT {'MIN' if first else 'MAX'}(v.visited_on) FROM visits v JOIN patients p ON p.id = v.patient_id "
        f"JOIN doctors d ON d.id = v.doctor_id WHERE {where}"
    )
    return ToolTask(goal, asked(query, day), answer={"type": "date", "value": day})


def average_minutes(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    patients, doctors = by_id(state.rows["patients"]), by_id(state.rows["doctors"])
    example = rng.choice([v for v in state.rows["visits"] if v["outcome"] == "completed"])
    specialty = doctors[example["doctor_id"]]["specialty"]
    found = [
        v
        for v in state.rows["visits"]
        if v["outcome"] == "completed" and doctors[v["doctor_id"]]["specialty"] == specialty
    ]
    where, owner = f"v.outcome = 'completed' AND d.specialty = '{specialty}'", ""
    if difficulty > 1:
        city = patients[example["patient_id"]]["city"]
        found = [v for v in found if patients[v["patient_id"]]["city"] == city]
        where += f" AND p.city = '{city}'"
        owner = f" of patients from {city}"
    if difficulty > 2:
        year = example["visited_on"][:4]
        found = [v for v in found if v["visited_on"].startswith(year)]
        where += f" AND v.visited_on LIKE '{year}%'"
        owner += f" in {year}"
    value = sum(v["minutes"] for v in found) / len(found)
    goal = rng.choice(
        (
            f"How many minutes did completed visits{owner} to doctors of {specialty} take on average? Round to one "
            "decimal place.",
            f"What is the mean length in minutes, to one decimal place, of the visits{owner} in {specialty} whose "
            "outcome is completed?",
        )
    )
    query = (
        "SELECT AVG(v.minutes) FROM visits v JOIN patients p ON p.id = v.patient_id "
        f"JOIN doctors d ON d.id = v.doctor_id WHERE {where}"
    )
    # Rounding half up, rounding half to even, and the unrounded mean are all accepted.
    answer = {"type": "number", "value": round(value, 3), "tolerance": 0.0511}
    return ToolTask(goal, asked(query, f"{value:.1f}"), answer=answer)


def look_up(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    """Create a task; half of the requested data are not in the database."""
    patient, doctor = rng.choice(state.rows["patients"]), rng.choice(state.rows["doctors"])
    about_doctor = rng.random() < 0.5
    person, table = (doctor, "doctors") if about_doctor else (patient, "patients")
    recorded = {"specialty": "specialty"} if about_doctor else {"city": "city", "date of birth": "born_on"}
    missing = (
        ("room number", "monthly salary") if about_doctor else ("telephone number", "blood group", "first language")
    )
    feasible = rng.random() < 0.5
    what = rng.choice(sorted(recorded) if feasible else missing)
    goal = rng.choice(
        (
            f"What is the {what} of {person['name']} according to the database? If it is not recorded there, this "
            "cannot be done.",
            f"Look up the {what} of {person['name']} in the database; if it holds nothing of the kind, report that.",
        )
    )
    look = (
        Call("describe_table", {"table_name": table}),
        Call("read_query", {"query": f"SELECT * FROM {table} WHERE id = {person['id']}"}),
    )
    if not feasible:
        reason = f"The database does not record any {what}."
        return ToolTask(goal, (*look, InfeasibleReport(reason)), infeasible=True)
    kind, value = "date" if what == "date of birth" else "string", person[recorded[what]]
    return ToolTask(goal, (*look, FinalAnswer(value)), answer={"type": kind, "value": value})


TEMPLATES = (
    ToolTaskTemplate("sqlite/visit-date", build, last_visit),
    ToolTaskTemplate("sqlite/average-minutes", build, average_minutes),
    ToolTaskTemplate("sqlite/look-up", build, look_up),
)
