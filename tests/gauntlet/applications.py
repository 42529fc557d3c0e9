"""The applications and widget libraries of the gauntlet. Another one is another entry of ``APPLICATIONS``.

``python -m tests.gauntlet.applications`` lists their packages for ``scripts/gauntlet.sh``, which installs them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Application:
    """An application of PyPI, or a page that uses libraries of npm.

    Attributes:
        name: Unique name.
        packages: Its packages with their versions: ``name==1.0`` of PyPI with ``server``, ``name@1.0`` of npm with
            ``page``.
        page: The body of the page. A library's files are at ``/lib/NAME/``.
        server: A program in ``servers/``; it is given a port and an empty folder.
        start: Path of the first page.
        steps: Actions to carry out first; ``<Save>`` stands for the number of the element whose name is, or begins
            with, "Save", or whose role it is, ``<Save#2>`` for the second one of them. ``until TEXT`` waits until the
            page shows a text.
        shows: Texts that the page shows after the steps.
    """

    name: str
    packages: tuple[str, ...]
    page: str = ""
    server: str = ""
    start: str = "/"
    steps: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()


JQUERY = "jquery@3.7.1"
_JQUERY = "<script src=/lib/jquery/dist/jquery.min.js></script>"

APPLICATIONS = (
    Application(
        "django-admin",
        ("Django==5.2.19",),
        server="django_admin.py",
        start="/admin/",
        steps=(
            'fill(<Username>, "admin")',
            'fill(<Password>, "secret")',
            "click(<Log in>)",
            "click(<Users>)",
            'fill(<Search>, "kim")',
            "click(<Search#2>)",
            "click(<kim>)",
            'fill(<First name>, "Ada")',
            "click(<Save>)",
        ),
        shows=("was changed successfully", "Ada"),
    ),
    Application(
        "flask-admin",
        ("Flask-Admin==2.2.1", "Flask-SQLAlchemy==3.1.1", "Flask==3.1.3", "SQLAlchemy==2.1.9"),
        server="flask_admin.py",
        steps=("click(<Create>)", 'fill(<Title>, "New one")', "click(<Save>)"),
        shows=("Record was successfully created",),
    ),
    Application(
        "jupyterlab",
        ("jupyterlab==4.4.9", "ipykernel==6.30.1"),
        server="jupyter_lab.py",
        start="/lab",
        steps=(
            "until Python 3 (ipykernel)",
            "click(<Python 3 (ipykernel)>)",
            "until | Idle",
            'fill(<textbox>, "print(6 * 7)")',
            'press("Shift+Enter")',
            'until "42"',
        ),
    ),
    Application(
        "swagger-ui",
        ("swagger-ui-dist@5.35.0",),
        """<link rel=stylesheet href=/lib/swagger-ui-dist/swagger-ui.css><div id=ui></div>
        <script src=/lib/swagger-ui-dist/swagger-ui-bundle.js></script><script>
        const get = {parameters: [{name: "id", in: "path", required: true, schema: {type: "integer"}}],
          responses: {200: {description: "A pet"}}};
        const post = {requestBody: {content: {"application/json": {schema: {$ref: "#/components/schemas/Pet"}}}},
          responses: {201: {description: "Made"}}};
        const kind = {type: "string", enum: ["cat", "dog"]};
        const Pet = {type: "object", properties: {name: {type: "string"}, kind}};
        SwaggerUIBundle({dom_id: "#ui", spec: {openapi: "3.0.0", info: {title: "Pets", version: "1"},
          paths: {"/pets/{id}": {get}, "/pets": {post}}, components: {schemas: {Pet}}}});</script>""",
        steps=("click(<GET /pets/{id}>)", "click(<Try it out>)", 'fill(<id>, "7")', "click(<Execute>)"),
        shows=("/pets/7",),
    ),
    Application(
        "codemirror",
        ("codemirror@5.65.21",),
        """<link rel=stylesheet href=/lib/codemirror/lib/codemirror.css><textarea id=t>print(1)</textarea>
        <script src=/lib/codemirror/lib/codemirror.js></script>
        <script src=/lib/codemirror/mode/python/python.js></script>
        <script>CodeMirror.fromTextArea(t, {lineNumbers: true, mode: "python"})</script>""",
        steps=(
            'fill(1, "x = 2")',
            'press("End")',
            'press("Enter")',
        ),
        shows=("x = 2",),
    ),
    Application(
        "quill",
        ("quill@2.0.3",),
        """<link rel=stylesheet href=/lib/quill/dist/quill.snow.css><div id=e><p>Hello</p></div>
        <script src=/lib/quill/dist/quill.js></script><script>new Quill("#e", {theme: "snow"})</script>""",
        steps=(
            'fill(<textbox>, "Some text")',
            'press("Control+a")',
            "click(<bold>)",
            "click(<list: bullet>)",
        ),
        shows=("Some text",),
    ),
    Application(
        "select2",
        (JQUERY, "select2@4.0.13"),
        f"""<link rel=stylesheet href=/lib/select2/dist/css/select2.min.css><label for=s>City</label>
        <select id=s style="width: 200px"><option>Aachen<option>Bonn<option>Celle</select>
        <select id=m multiple style="width: 200px"><option>red<option>green<option>blue</select>{_JQUERY}
        <script src=/lib/select2/dist/js/select2.min.js></script><script>$("select").select2()</script>""",
        steps=(
            "click(<Aachen>)",
            "click(<Bonn>)",
            "click(3)",
        ),
        shows=("Bonn",),
    ),
    Application(
        "tom-select",
        ("tom-select@2.6.2",),
        """<link rel=stylesheet href=/lib/tom-select/dist/css/tom-select.css><input id=i value="one,two">
        <select id=s><option value="">Choose<option value=1>First<option value=2>Second</select>
        <script src=/lib/tom-select/dist/js/tom-select.complete.min.js></script>
        <script>new TomSelect("#i", {create: true, plugins: ["remove_button"]}); new TomSelect("#s")</script>""",
        steps=(
            "click(<Choose>)",
            "click(<Second>)",
            "click(<×>)",
        ),
        shows=("Second",),
    ),
    Application(
        "sortablejs",
        ("sortablejs@1.15.7",),
        """<style>.column {border: 1px solid; width: 200px; min-height: 150px; float: left; padding: 8px}
        .card {background: #eee; margin: 4px; padding: 8px}</style>
        <h3>To do</h3><div class=column id=a><div class=card>Write</div><div class=card>Read</div></div>
        <div class=column id=b aria-label=Done></div><p id=out>
        <script src=/lib/sortablejs/Sortable.min.js></script><script>
        for (const column of [a, b]) new Sortable(column, {group: "board", onEnd: () => {
          out.textContent = "Done: " + b.textContent }})</script>""",
        steps=("drag(<Write>, <Done>)",),
        shows=("Done: Write",),
    ),
    Application(
        "flatpickr",
        ("flatpickr@4.6.13",),
        """<link rel=stylesheet href=/lib/flatpickr/dist/flatpickr.min.css><label>Day <input id=d></label>
        <label>Time <input id=t></label><script src=/lib/flatpickr/dist/flatpickr.min.js></script>
        <script>flatpickr("#d", {defaultDate: "2024-05-01"}); flatpickr("#t", {enableTime: true, noCalendar: true})
        </script>""",
        steps=(
            "click(<Day>)",
            "click(<May 9, 2024>)",
        ),
        shows=("2024-05-09",),
    ),
    Application(
        "tabulator",
        ("tabulator-tables@6.5.3",),
        """<link rel=stylesheet href=/lib/tabulator-tables/dist/css/tabulator.min.css><div id=g></div>
        <script src=/lib/tabulator-tables/dist/js/tabulator.min.js></script><script>
        const data = Array.from({length: 500}, (_, id) => ({id, name: "Name " + id, done: id % 2 == 0}));
        new Tabulator("#g", {height: 300, data, layout: "fitColumns", selectableRows: true, movableRows: true,
          columns: [{title: "Id", field: "id"}, {title: "Name", field: "name", editor: "input", headerFilter: "input"},
          {title: "Done", field: "done", formatter: "tickCross", editor: true}]})</script>""",
        steps=(
            'type(5, "Name 49")',
            "wait()",
            "click(<Name 49>)",
        ),
        shows=("Name 499",),
    ),
    Application(
        "ag-grid",
        ("ag-grid-community@36.2.0",),
        """<div id=g style="height: 400px"></div>
        <script src=/lib/ag-grid-community/dist/ag-grid-community.min.js></script>
        <script>agGrid.createGrid(g, {pagination: true, rowSelection: {mode: "multiRow"},
          columnDefs: [{field: "name", filter: true, editable: true}, {field: "price", sortable: true}],
          rowData: Array.from({length: 300}, (_, n) => ({name: "Item " + n, price: n * 7 % 100}))})</script>""",
    ),
    Application(
        "datatables",
        (JQUERY, "datatables.net@2.3.0"),
        f"""<table id=t><thead><tr><th>Name<th>Age</thead><tbody></tbody></table>{_JQUERY}
        <script src=/lib/datatables.net/js/dataTables.min.js></script><script>
        new DataTable("#t", {{data: Array.from({{length: 60}}, (_, n) => ["Person " + n, 20 + n % 50])}})</script>""",
        steps=(
            'fill(<Search:>, "Person 5")',
            "click(<Age>)",
            'select(<entries per page>, "25")',
        ),
        shows=("Person 59",),
    ),
    Application(
        "jstree",
        (JQUERY, "jstree@3.3.17"),
        f"""<link rel=stylesheet href=/lib/jstree/dist/themes/default/style.min.css><div id=t></div>{_JQUERY}
        <script src=/lib/jstree/dist/jstree.min.js></script><script>
        $("#t").jstree({{plugins: ["checkbox", "contextmenu", "dnd"], core: {{check_callback: true, data: [
          {{text: "Fruit", children: ["Apple", "Pear"]}}, {{text: "Vegetables", children: ["Leek"]}}]}}}})</script>""",
        steps=(
            "dblclick(<Fruit>)",
            "click(<Apple>)",
            'click(<Pear>, "right")',
            "click(<Rename>)",
        ),
        shows=("Apple",),
    ),
    Application(
        "jquery-ui",
        (JQUERY, "jquery-ui@1.14.2"),
        f"""<link rel=stylesheet href=/lib/jquery-ui/dist/themes/base/jquery-ui.min.css>
        <ul id=s><li>One</li><li>Two</li><li>Three</li></ul>
        <div id=a><h3>Part 1</h3><div>a</div><h3>Part 2</h3><div>b</div></div>
        <ul id=m style="width: 150px"><li><div>File</div><ul><li><div>Open</div><li><div>Close</div></ul>
        <li><div>Edit</div></ul><input id=d aria-label=Date><div id=r></div><input id=p aria-label=Number>
        <div id=drag style="width: 60px; height: 40px">Drag me</div>
        <div id=drop style="width: 99px; height: 80px">Here</div>
        <div id=w title=Window>Inside</div>{_JQUERY}<script src=/lib/jquery-ui/dist/jquery-ui.min.js></script><script>
        $("#s").sortable(); $("#a").accordion(); $("#m").menu(); $("#d").datepicker(); $("#r").slider();
        $("#p").spinner(); $("#drag").draggable(); $("#drop").droppable({{drop: () => $("#drop").text("Dropped")}});
        $("#w").dialog({{position: {{my: "right top", at: "right top", of: window}}}})</script>""",
        steps=(
            "click(<Close>)",
            "drag(<Drag me>, <Here>)",
            "click(<Part 2>)",
            "drag(<One>, <Three>)",
            "click(<Date>)",
            "click(<15>)",
            "hover(<File>)",
            "wait()",
            "click(<Open>)",
        ),
        shows=(
            "Dropped",
            '"Part 2"',
        ),
    ),
    Application(
        "shoelace",
        ("@shoelace-style/shoelace@2.20.1",),
        """<link rel=stylesheet href=/lib/@shoelace-style/shoelace/cdn/themes/light.css>
        <script type=module src=/lib/@shoelace-style/shoelace/cdn/shoelace.js></script>
        <sl-input label=Name></sl-input><sl-select label=Colour><sl-option value=r>Red</sl-option>
        <sl-option value=g>Green</sl-option></sl-select><sl-checkbox>Agree</sl-checkbox><sl-switch>Night</sl-switch>
        <sl-rating label=Rating></sl-rating><sl-range label=Size></sl-range><sl-details summary=More>Hidden</sl-details>
        <sl-tab-group><sl-tab slot=nav panel=a>First</sl-tab><sl-tab slot=nav panel=b>Second</sl-tab>
        <sl-tab-panel name=a>Panel 1</sl-tab-panel><sl-tab-panel name=b>Panel 2</sl-tab-panel></sl-tab-group>
        <sl-dropdown><sl-button slot=trigger caret>Menu</sl-button><sl-menu><sl-menu-item>Cut</sl-menu-item>
        <sl-menu-item>Copy</sl-menu-item></sl-menu></sl-dropdown><sl-button onclick="d.show()">Open</sl-button>
        <sl-dialog id=d label=Dialog>Really?<sl-button slot=footer>Yes</sl-button></sl-dialog>
        <sl-tree><sl-tree-item>Root<sl-tree-item>Leaf</sl-tree-item></sl-tree-item></sl-tree>""",
        steps=(
            'fill(<Name>, "Ada")',
            "click(<Agree>)",
            "click(<Second>)",
            "click(<Menu>)",
            "click(<Copy>)",
            "click(<Open>)",
            "click(<Yes>)",
        ),
        shows=("Panel 2",),
    ),
    Application(
        "react",
        ("react@18.3.1", "react-dom@18.3.1"),
        """<div id=root></div><script src=/lib/react/umd/react.production.min.js></script>
        <script src=/lib/react-dom/umd/react-dom.production.min.js></script><script>
        const e = React.createElement;
        function App() {
          const [said, say] = React.useState("nothing");
          const on = name => ({[name]: event => { event.preventDefault(); say(name) }});
          return e("main", null, e("p", null, "Said: " + said), e("div", on("onClick"), "Click target"),
            e("div", on("onContextMenu"), "Menu target"), e("div", on("onMouseEnter"), "Hover target"),
            e("div", on("onDoubleClick"), "Double target"), e("p", null, "Words"),
            e("div", {draggable: true, onDragStart: event => event.dataTransfer.setData("text", "x")}, "Drag source"),
            e("div", {...on("onDrop"), onDragOver: event => event.preventDefault()}, "Drop target"));
        }
        ReactDOM.createRoot(root).render(e(App))</script>""",
        steps=(
            'click(<Menu target>, "right")',
            "hover(<Hover target>)",
            "dblclick(<Double target>)",
            "drag(<Drag source>, <Drop target>)",
        ),
        shows=("Said: onDrop",),
    ),
    Application(
        "vue",
        ("vue@3.5.45",),
        """<div id=app><input v-model=text aria-label=Task @keyup.enter=add><button @click=add>Add</button>
        <div v-for="task in tasks" :key=task @click.right.prevent="tasks.splice(tasks.indexOf(task), 1)">{{task}}</div>
        <span @mouseover="seen = true">Hover</span><b v-if=seen>seen</b></div>
        <script src=/lib/vue/dist/vue.global.prod.js></script><script>
        Vue.createApp({data: () => ({text: "", tasks: ["Old task"], seen: false}),
          methods: {add() { this.tasks.push(this.text); this.text = "" }}}).mount("#app")</script>""",
        steps=(
            'fill(<Task>, "New task")',
            "click(<Add>)",
            'click(<Old task>, "right")',
            "hover(<Hover>)",
        ),
        shows=(
            "New task",
            "seen",
        ),
    ),
    Application(
        "alpine",
        ("alpinejs@3.17.5",),
        """<div x-data="{open: false, count: 0}"><button @click="open = !open">Toggle</button>
        <div x-show=open @click.outside="open = false">Shown</div><span x-text=count></span>
        <div @click="count++">Count</div></div><script defer src=/lib/alpinejs/dist/cdn.min.js></script>""",
        steps=(
            "click(<Toggle>)",
            "click(<Count>)",
        ),
        shows=('"1"',),
    ),
    Application(
        "leaflet",
        ("leaflet@1.9.4",),
        """<link rel=stylesheet href=/lib/leaflet/dist/leaflet.css><div id=m style="height: 400px"></div>
        <script src=/lib/leaflet/dist/leaflet.js></script><script>
        const map = L.map("m").setView([51.5, 0], 12);
        L.marker([51.5, 0], {alt: "Here", title: "Here"}).addTo(map).bindPopup("A place");
        L.circle([51.51, 0.02], {radius: 500}).addTo(map).bindTooltip("A circle")</script>""",
        steps=(
            "click(<Here>)",
            "click(<Zoom in>)",
            "hover(2)",
            "drag(1, 2)",
        ),
        shows=("A place",),
    ),
    Application(
        "chart.js",
        ("chart.js@4.5.0",),
        """<div style="width: 600px"><canvas id=c></canvas></div><script src=/lib/chart.js/dist/chart.umd.js></script>
        <script>new Chart(c, {type: "bar", data: {labels: ["a", "b"], datasets: [{label: "Sales", data: [3, 5]}]}})
        </script>""",
    ),
    Application(
        "echarts",
        ("echarts@6.1.0",),
        """<div id=c style="width: 600px; height: 400px"></div><script src=/lib/echarts/dist/echarts.min.js></script>
        <script>echarts.init(c, null, {renderer: "svg"}).setOption({tooltip: {}, legend: {}, xAxis: {data: ["a", "b"]},
          yAxis: {}, series: [{name: "Sales", type: "bar", data: [3, 5]}]})</script>""",
    ),
    Application(
        "fabric",
        ("fabric@6.7.1",),
        """<canvas id=c width=400 height=300></canvas><script src=/lib/fabric/dist/index.min.js></script>
        <script>new fabric.Canvas("c").add(new fabric.Rect({left: 50, top: 50, width: 80, height: 60}))</script>""",
    ),
    Application(
        "swiper",
        ("swiper@11.2.10",),
        """<link rel=stylesheet href=/lib/swiper/swiper-bundle.min.css><div class=swiper style="height: 200px">
        <div class=swiper-wrapper><div class=swiper-slide>Slide 1</div><div class=swiper-slide>Slide 2</div></div>
        <div class=swiper-pagination></div><div class=swiper-button-prev></div>
        <div class=swiper-button-next></div></div>
        <script src=/lib/swiper/swiper-bundle.min.js></script><script>
        new Swiper(".swiper", {pagination: {el: ".swiper-pagination", clickable: true},
          navigation: {nextEl: ".swiper-button-next", prevEl: ".swiper-button-prev"}})</script>""",
        steps=(
            "click(<Next slide>)",
            "click(<Go to slide 1>)",
        ),
        shows=("Slide 1",),
    ),
    Application(
        "video.js",
        ("video.js@8.23.4",),
        """<link rel=stylesheet href=/lib/video.js/dist/video-js.min.css><video id=v class=video-js controls width=600
        height=300></video><script src=/lib/video.js/dist/video.min.js></script><script>videojs("v")</script>""",
    ),
    Application(
        "bootstrap",
        ("bootstrap@5.3.8",),
        """<link rel=stylesheet href=/lib/bootstrap/dist/css/bootstrap.min.css><div class=dropdown>
        <button class="btn dropdown-toggle" data-bs-toggle=dropdown>Actions</button><ul class=dropdown-menu>
        <li><a class=dropdown-item href="#x">Copy</a></li></ul></div><button class=btn data-bs-toggle=modal
        data-bs-target="#m">Open</button><div class="modal fade" id=m tabindex=-1><div class=modal-dialog>
        <div class=modal-content><div class=modal-body>Sure?</div><button class=btn data-bs-dismiss=modal>Close</button>
        </div></div></div><div class=accordion><div class=accordion-item><button class="accordion-button collapsed"
        data-bs-toggle=collapse data-bs-target="#k">Section</button><div id=k class="collapse">Content</div></div></div>
        <div class="form-check form-switch"><input class=form-check-input type=checkbox id=w><label for=w>Switch</label>
        </div><script src=/lib/bootstrap/dist/js/bootstrap.bundle.min.js></script>""",
        steps=(
            "click(<Actions>)",
            "click(<Copy>)",
            "click(<Section>)",
            "check(<Switch>)",
            "click(<Open>)",
            "click(<Close>)",
        ),
        shows=("Content",),
    ),
    Application(
        "fullcalendar",
        ("fullcalendar@6.1.19",),
        """<div id=c></div><script src=/lib/fullcalendar/index.global.min.js></script><script>
        new FullCalendar.Calendar(c, {initialDate: "2024-05-01", editable: true, selectable: true, height: 500,
          events: [{title: "Meeting", start: "2024-05-14"}], headerToolbar: {left: "prev,next", right:
          "dayGridMonth,timeGridWeek"}, eventClick: info => info.el.append("clicked")}).render()</script>""",
        steps=(
            "click(<Meeting>)",
            "click(<Next month>)",
            "click(<Previous month>)",
            "drag(<Meeting>, <May 20, 2024>)",
            "click(<week>)",
        ),
        shows=("Sun 4/28",),
    ),
    Application(
        "frames",
        ("flatpickr@4.6.13", JQUERY, "select2@4.0.13"),
        f"""<iframe name=one style="width: 600px; height: 200px" srcdoc='<link rel=stylesheet
        href=/lib/select2/dist/css/select2.min.css><select><option>Inner one<option>Inner two</select>{_JQUERY}
        <script src=/lib/select2/dist/js/select2.min.js></script><script>$("select").select2({{width: 200}})</script>'>
        </iframe><iframe name=two srcdoc="<button onclick=this.append(1)>In a frame</button>"></iframe>
        <div id=list style="height: 150px; overflow: auto"></div><script>
        let n = 0;
        const more = () => {{ for (let i = 0; i < 20; i++) list.insertAdjacentHTML("beforeend", `<a href=#${{++n}}>Row
          ${{n}}</a><br>`) }};
        more();
        list.onscroll = () => {{ if (list.scrollTop + 200 > list.scrollHeight) more() }};
        navigator.serviceWorker?.register("/worker.js");
        </script>""",
        steps=(
            "click(<In a frame>)",
            "click(<Inner one>)",
            "click(<Inner two>)",
            'scroll("down", 1)',
            'scroll("down", 1)',
        ),
        shows=(
            "In a frame1",
            "Row 30",
        ),
    ),
)


if __name__ == "__main__":
    for application in APPLICATIONS:
        print(application.name if application.server else "npm", *application.packages)
