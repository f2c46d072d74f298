package io.djltp.examples.classes;

import io.djltp.classes.ClassModel;
import io.djltp.examples.JsonFile;
import io.djltp.examples.train.ClassEvaluation;
import io.djltp.examples.train.DataOptions;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.Callable;

/** Judges a trained classifier by rows whose labels are known. */
@Command(
        name = "evaluate",
        description =
                "Judges a classifier of ./tp train by the rows of a file: precision, recall,"
                        + " nDCG and propensity-scored precision of the best classes, and F1.",
        mixinStandardHelpOptions = true)
public final class EvaluateCommand implements Callable<Integer> {

    @Parameters(paramLabel = "DIR", description = "Folder of the trained model.")
    private Path folder;

    @Mixin private DataOptions own;

    @Option(names = "--json", description = "A file for the figures.")
    private @Nullable Path json;

    /** Creates the command; its options are set by the command line. */
    public EvaluateCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        own.check();
        DataOptions.Source rows = own.source();
        JsonFile.check("--json", json);
        try (ClassModel model = Classifier.open(folder)) {
            Map<String, Object> figures =
                    ClassEvaluation.evaluate(model, ClassEvaluation.read(own, rows, model));
            ClassEvaluation.print(figures, System.out);
            JsonFile.write(json, figures);
        }
        return 0;
    }
}
