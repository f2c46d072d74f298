package io.djltp.examples.classes;

import ai.djl.MalformedModelException;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.train.ClassEvaluation;
import io.djltp.examples.train.DataOptions;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.Callable;

/** A command for a trained classifier and rows whose labels are known. */
abstract class RowsCommand implements Callable<Integer> {

    @Parameters(paramLabel = "DIR", description = "Folder of the trained model.")
    private Path folder;

    @Mixin private DataOptions own;

    @Option(names = "--json", description = "A file for the figures.")
    private @Nullable Path json;

    /** Does the work, prints its figures, and returns them by name. */
    abstract Map<String, Object> run(ClassModel model, Path folder, ClassData data)
            throws IOException;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        own.check();
        DataOptions.Source rows = own.source();
        JsonFile.check("--json", json);
        if (!ClassModel.isIn(folder)) {
            throw new BadInputException(
                    "There is no classifier of a file in %s: ./tp train --data writes one", folder);
        }
        try (ClassModel model = ClassModel.load(folder)) {
            JsonFile.write(json, run(model, folder, ClassEvaluation.read(own, rows, model)));
        } catch (MalformedModelException | IllegalArgumentException e) {
            throw new BadInputException(folder + ": " + e.getMessage(), e);
        }
        return 0;
    }
}
