package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.cost.ModelCost;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.rank.DeviceMesh;
import io.djltp.torch.LibTorch;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
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

    @Parameters(paramLabel = "MODEL", description = "lemmatiser or resnet.")
    private String modelName;

    @Option(
            names = "--mesh",
            defaultValue = "1x2",
            description = "Ranks over the data x ranks over the layers (${DEFAULT-VALUE}).")
    private String meshText;

    @Option(
            names = "--batch",
            defaultValue = "512",
            description = "Rows of a step, over all ranks (${DEFAULT-VALUE}).")
    private int batch;

    @Option(
            names = "--classes",
            description = "Classes of the last layer (120658 lemmas, or 1000 of ImageNet).")
    private Integer classes;

    @Option(
            names = "--optimizer",
            defaultValue = "adagrad",
            description = "${COMPLETION-CANDIDATES} (${DEFAULT-VALUE}).")
    private OptimizerName optimizer;

    @Option(names = "--html", description = "File for the picture, a page of its own.")
    private Path html;

    @Option(names = "--json", description = "File for the figures.")
    private Path json;

    private final PrintStream out = System.out;

    /** Creates the command; its options are set by the command line. */
    public PlanCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        PlannedModel model = model();
        DeviceMesh mesh = mesh();
        if (batch < 1 || classes != null && classes < 1) {
            throw new BadInputException("--batch and --classes must be 1 or more");
        }
        JsonFile.check("--html", html);
        JsonFile.check(json);
        LibTorch.load();
        PlanReport report = new PlanReport(model, batch, optimizer, cost(model, mesh));
        new PlanTable(report, out).print();
        JsonFile.write(json, report.figures());
        if (html != null) {
            Files.writeString(html, new PlanPage(report).render());
            out.println("The picture is in " + html);
        }
        return 0;
    }

    private PlannedModel model() {
        return PlannedModel.ALL.stream()
                .filter(each -> each.getName().equals(modelName))
                .findFirst()
                .orElseThrow(
                        () ->
                                new BadInputException(
                                        "There is no model '"
                                                + modelName
                                                + "': choose one of "
                                                + PlannedModel.ALL.stream()
                                                        .map(PlannedModel::getName)
                                                        .collect(Collectors.joining(", "))));
    }

    private DeviceMesh mesh() {
        DeviceMesh mesh;
        try {
            mesh = DeviceMesh.parse(meshText);
        } catch (IllegalArgumentException e) {
            throw new BadInputException("--mesh: " + e.getMessage(), e);
        }
        if (mesh.getRanks() > MOST_RANKS) {
            throw new BadInputException(
                    "--mesh " + meshText + ": a plan shows at most " + MOST_RANKS + " ranks");
        }
        return mesh;
    }

    private ModelCost cost(PlannedModel model, DeviceMesh mesh) {
        Shape[] inputs = model.inputs(batch);
        try {
            return ModelCost.builder()
                    .setBlock(model.create(classes))
                    .setMesh(mesh)
                    .setInputs(inputs)
                    .setLoss(model.loss())
                    .setOptimizer(optimizer.create(0.1f))
                    .build();
        } catch (IllegalArgumentException e) {
            throw new BadInputException("--mesh " + meshText + ": " + e.getMessage(), e);
        }
    }
}
