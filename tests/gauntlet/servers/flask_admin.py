"""Flask-Admin with a table of books. Run by the Python of its own environment: ``flask_admin.py PORT FOLDER``."""

import sys
from pathlib import Path

folder_of_script = sys.path.pop(0)  # this file's name would hide the package

from flask import Flask, redirect  # noqa: E402
from flask_admin import Admin  # noqa: E402
from flask_admin.contrib.fileadmin import FileAdmin  # noqa: E402
from flask_admin.contrib.sqla import ModelView  # noqa: E402
from flask_sqlalchemy import SQLAlchemy  # noqa: E402

port, folder = sys.argv[1:]
app = Flask(__name__)
app.config |= {"SECRET_KEY": "not a secret", "SQLALCHEMY_DATABASE_URI": f"sqlite:///{folder}/books.sqlite3"}
db = SQLAlchemy(app)


class Book(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    title = db.Column(db.String(80))
    genre = db.Column(db.Enum("novel", "poetry", "science", name="genre"))
    published = db.Column(db.Date)


class BookView(ModelView):
    can_export = True
    column_searchable_list = ("title",)
    column_filters = ("genre", "published")
    column_editable_list = ("title",)


@app.route("/")
def home():
    return redirect("/admin/book/")


admin = Admin(app, name="Books")
admin.add_view(BookView(Book, db))
admin.add_view(FileAdmin(folder, name="Files"))
with app.app_context():
    db.create_all()
    db.session.add_all(Book(title=f"Book {number}", genre="novel") for number in range(45))
    db.session.commit()
Path(folder, "notes.txt").write_text("notes")
app.run("127.0.0.1", int(port))
