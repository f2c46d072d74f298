package io.djltp.examples.plan;

import io.djltp.cost.ModelCost;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.plan.PlanReport.PlanFigures;
import io.djltp.examples.plan.PlannedModel.Planned;
import io.djltp.rank.DeviceMesh;
import io.djltp.torch.LibTorch;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

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

    @Parameters(paramLabel = "MODEL", description = "lemmatiser, minilm, lm or resnet.")
    private String modelName;

    @Option(
            names = "--mesh",
            defaultValue = "1x2",
            description = "Ranks over the data x ranks over the layers (${DEFAULT-VALUE}).")
    private String meshText;

    @Mixin private PlanOptions options = new PlanOptions();

    @Option(names = "--html", description = "File for the picture, a page of its own.")
    private Path html;

    @Option(names = "--json", description = "File for the figures.")
    private Path json;

    @Spec private CommandSpec spec;

    private final PrintStream out = System.out;

    /** Creates the command; its options are set by the command line. */
    public PlanCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        PlannedModel model = model();
        DeviceMesh mesh = mesh();
        options.check(model, spec.commandLine().getParseResult());
        JsonFile.check("--html", html);
        JsonFile.check(json);
        LibTorch.load();
        PlanReport report =
                new PlanReport(
                        model,
                        options.batch(model),
                        options.optimizer(model),
                        cost(model.create(options, options.batch(model)), model, mesh));
        new PlanTable(report, out).print();
        JsonFile.write(json, new PlanFigures(report));
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

    private ModelCost cost(Planned planned, PlannedModel model, DeviceMesh mesh) {
        ModelCost.Builder builder =
                ModelCost.builder()
                        .setBlock(planned.block())
                        .setMesh(mesh)
                        .setInputs(planned.inputs())
                        .optTraining(planned.loss() != null);
        if (planned.loss() != null) {
            builder.setLoss(planned.loss()).setOptimizer(options.optimizer(model).create(0.1f));
        }
        try {
            return builder.build();
        } catch (IllegalArgumentException e) {
            throw new BadInputException("--mesh " + meshText + ": " + e.getMessage(), e);
        }
    }
}
