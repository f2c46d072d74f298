package io.djltp.examples.classes;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.examples.train.ClassEvaluation;

import picocli.CommandLine.Command;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;

/** Judges a trained classifier by rows whose labels are known. */
@Command(
        name = "evaluate",
        description =
                "Judges a classifier of ./tp train --data by the rows of a file: precision, recall,"
                        + " nDCG and propensity-scored precision of the best classes, and F1.",
        mixinStandardHelpOptions = true)
public final class EvaluateCommand extends RowsCommand {

    /** Creates the command; its options are set by the command line. */
    public EvaluateCommand() {}

    @Override
    Map<String, Object> run(ClassModel model, Path folder, ClassData data) throws IOException {
        Map<String, Object> figures = ClassEvaluation.evaluate(model, data);
        ClassEvaluation.print(figures, System.out);
        return figures;
    }
}
