package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.collective.TrafficTable.Traffic;
import io.djltp.cost.ModelCost;
import io.djltp.cost.ModelCost.ParameterCost;
import io.djltp.cost.ModelCost.RankCost;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.plan.LayerGroups.LayerGroup;
import io.djltp.examples.plan.PlannedModel.Planned;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.rank.DeviceMesh;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;

/** {@code tp plan}: what each rank would hold of a model and communicate, without training it. */
@Command(
        name = "plan",
        description =
                "Shows what each rank of a mesh holds of a model, and what it communicates in a"
                        + " step, before anything is allocated.",
        mixinStandardHelpOptions = true)
public final class PlanCommand implements Callable<Integer> {

    private static final int MOST_RANKS = 1024;

    @Parameters(
            arity = "0..1",
            paramLabel = "MODEL",
            description =
                    "lemmatiser, minilm, lm or resnet, or a folder of Hugging Face with a"
                            + " config.json. Of a folder, --batch and --context are the texts and"
                            + " the tokens of a text for which a generator has room too (--context:"
                            + " the positions of the model, at most 2048).")
    private @Nullable String name;

    @Option(
            names = "--mesh",
            defaultValue = "1x2",
            description = "Ranks over the data x ranks over the layers (${DEFAULT-VALUE}).")
    private String meshText;

    @Mixin private PlanOptions options = new PlanOptions();

    @Option(names = "--html", description = "File for the picture, a page of its own.")
    private @Nullable Path html;

    @Option(names = "--json", description = "File for the figures.")
    private @Nullable Path json;

    @Spec private CommandSpec spec;

    private final PrintStream out = System.out;

    /** Creates the command; its options are set by the command line. */
    public PlanCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        PlannedModel model = model();
        DeviceMesh mesh = mesh(meshText);
        options.check(model, spec.commandLine().getParseResult());
        JsonFile.check("--html", html);
        JsonFile.check("--json", json);
        LibTorch.load();
        PlanReport report =
                new PlanReport(
                        model, options.batch(model), options.optimizer(model), cost(model, mesh));
        new PlanTable(report, out).print();
        Map<String, Object> figures = report.figures();
        if (model == PlannedModel.FOLDER && !options.config().isEncoder()) {
            GenerationCost generation = new GenerationCost(options, report);
            out.println(generation);
            generation.addTo(figures);
        }
        JsonFile.write(json, figures);
        if (html != null) {
            Files.writeString(html, new PlanPage(report).render());
            out.println("The picture is in " + html);
        }
        return 0;
    }

    private static DeviceMesh mesh(String text) {
        DeviceMesh mesh = DeviceOptions.mesh(text, null);
        if (mesh.getRanks() > MOST_RANKS) {
            throw new BadInputException(
                    "--mesh %s: a plan shows at most %d ranks", text, MOST_RANKS);
        }
        return mesh;
    }

    private PlannedModel model() throws IOException {
        for (PlannedModel each : PlannedModel.values()) {
            if (each != PlannedModel.FOLDER && each.toString().equals(name)) {
                return each;
            }
        }
        if (name != null && Files.isDirectory(Path.of(name))) {
            options.read(Path.of(name));
            return PlannedModel.FOLDER;
        }
        throw new ParameterException(
                spec.commandLine(),
                (name == null ? "" : name + " is no model and no folder. ")
                        + "Choose a model: lemmatiser, minilm, lm or resnet, or a folder with a"
                        + " config.json");
    }

    private ModelCost cost(PlannedModel model, DeviceMesh mesh) throws IOException {
        Planned planned = model.create(options, options.batch(model));
        ModelCost.Builder builder =
                ModelCost.builder()
                        .setBlock(planned.block())
                        .setMesh(mesh)
                        .setInputs(planned.inputs())
                        .optTraining(planned.loss() != null)
                        .optShardOptimizer(options.shardOptimizer);
        OptimizerName optimizer = options.optimizer(model);
        if (planned.loss() != null && optimizer != null) {
            builder.setLoss(planned.loss()).setOptimizer(optimizer.create(0.1f));
        }
        return BadInputException.check("--mesh " + meshText + ": ", builder::build);
    }

    /** A plan as text. */
    private static final class PlanTable {

        private final PlanReport report;
        private final ModelCost cost;
        private final PrintStream out;
        private final List<LayerGroup> groups;

        PlanTable(PlanReport report, PrintStream out) {
            this.report = report;
            this.out = out;
            cost = report.cost();
            groups = LayerGroups.of(report);
        }

        void print() {
            line(
                    "%s on the mesh %s, %,d rows a %s, %s",
                    report.model(),
                    cost.getMesh(),
                    report.batch(),
                    report.step(),
                    report.optimizerName() == null ? "not trained" : report.optimizerName());
            line("");
            printParameters();
            line("");
            line(
                    "%-5s %10s %10s %10s %10s  a %s",
                    "rank", "weights", "gradients", "state", "all", report.step());
            for (int rank = 0; rank < cost.getMesh().getRanks(); rank++) {
                printRank(rank);
            }
            line("");
            line("rank 0 communicates in a %s:", report.step());
            printTraffic();
        }

        /** A row for each parameter; of equal blocks those of one. */
        private void printParameters() {
            List<Row> rows = new ArrayList<>();
            Set<ParameterCost> seen = new HashSet<>(); // one may be shared by two layers
            for (LayerGroup group : groups) {
                if (group.times() > 1) {
                    rows.add(new Row(group.title() + ", each", null));
                }
                for (int i = 0; i < group.shown().size(); i++) {
                    for (ParameterCost each : group.shown().get(i).parameters()) {
                        String name =
                                group.times() == 1
                                        ? each.name()
                                        : "  " + group.names().get(i) + "/" + nameOf(each);
                        if (seen.add(each)) {
                            rows.add(new Row(name, each));
                        }
                    }
                }
            }
            int width = rows.stream().mapToInt(each -> each.name.length()).max().orElse(0);
            String format = "%-" + Math.max(9, width) + "s  %-18s  %-8s  %s";
            line(format, "parameter", "shape", "cut", "a rank holds");
            for (Row row : rows) {
                ParameterCost each = row.parameter;
                if (each == null) {
                    line("%s", row.name);
                } else {
                    String cut = each.isCut() ? "axis " + each.getAxis() : "-";
                    line(format, row.name, Sizes.shape(each.shape()), cut, shards(each));
                }
            }
        }

        private record Row(String name, @Nullable ParameterCost parameter) {}

        private static String nameOf(ParameterCost each) {
            return each.parameter().getName();
        }

        private void printTraffic() {
            List<PlanReport.Line> lines = new ArrayList<>();
            for (LayerGroup group : groups) {
                lines.addAll(
                        group.times() == 1
                                ? report.lines(group.shown().get(0))
                                : report.lines(group));
            }
            lines.addAll(report.linesOfOthers());
            lines.sort(Comparator.comparing(PlanReport.Line::direction));
            lines.forEach(this::printTraffic);
            if (lines.isEmpty()) {
                line("  nothing");
            } else if (lines.size() > report.totals().size()) {
                line("in all:");
                report.totals().forEach(each -> printTraffic(each.by("")));
            }
        }

        private void printTraffic(PlanReport.Line each) {
            String row =
                    String.format(
                            Locale.ROOT,
                            "  %-8s  %-17s  %9s  %9s on the wire  %s",
                            each.direction(),
                            each.traffic().calls() + " " + each.collective(),
                            Sizes.bytes(each.traffic().payload()),
                            Sizes.bytes(each.traffic().wire()),
                            each.issuer());
            line("%s", row.stripTrailing());
        }

        private void printRank(int rank) {
            RankCost bytes = cost.getRank(rank);
            Traffic traffic = cost.getTraffic(rank).getTotal();
            line(
                    "%-5d %10s %10s %10s %10s  %d collectives, %s on the wire",
                    rank,
                    Sizes.bytes(bytes.weights()),
                    Sizes.bytes(bytes.gradients()),
                    Sizes.bytes(bytes.state()),
                    Sizes.bytes(bytes.getTotal()),
                    traffic.calls(),
                    Sizes.bytes(traffic.wire()));
        }

        private String shards(ParameterCost parameter) {
            Set<Shape> shapes = new LinkedHashSet<>();
            for (int rank = 0; rank < report.tensorSize(); rank++) {
                shapes.add(parameter.getShape(rank));
            }
            return shapes.stream().map(Sizes::shape).collect(Collectors.joining(" or "));
        }

        private void line(String format, Object... values) {
            out.printf(Locale.ROOT, format + "%n", values);
        }
    }
}
