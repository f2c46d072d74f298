package io.djltp.examples.classes;

import ai.djl.MalformedModelException;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.train.ClassEvaluation;
import io.djltp.examples.train.DataOptions;
import io.djltp.search.ClassIndex;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;

/** Builds the index of a trained classifier's classes. */
@Command(
        name = "index",
        description =
                "Builds an index of the classes of a classifier of train --data, by which predict"
                        + " --index and serve --index find nearly all of the best classes sooner.",
        mixinStandardHelpOptions = true)
public final class IndexCommand implements Callable<Integer> {

    @Parameters(paramLabel = "DIR", description = "Folder of the trained model.")
    private Path folder;

    @Mixin private DataOptions own;

    @Option(names = "--json", description = "A file for the figures.")
    private @Nullable Path json;

    /** Creates the command; its options are set by the command line. */
    public IndexCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        own.check();
        if (own.data == null) {
            throw new BadInputException("Say what is asked for: --data FILE");
        }
        JsonFile.check("--json", json);
        if (!ClassModel.isIn(folder)) {
            throw new BadInputException(
                    "There is no classifier of a file in %s: ./tp train --data writes one", folder);
        }
        try (ClassModel model = ClassModel.load(folder)) {
            boolean sparse = model.getFeatures() == ClassData.Features.SPARSE;
            ClassData data =
                    ClassEvaluation.read(
                            own,
                            own.files(),
                            model.getClasses(),
                            model.getFeatures(),
                            model.getInputs() - (sparse ? 1 : 0));
            long begin = System.nanoTime();
            ClassIndex index = model.buildIndex(data);
            double seconds = (System.nanoTime() - begin) / 1e9;
            index.save(folder.resolve(ClassModel.INDEX));
            System.out.printf(Locale.ROOT, "%s%nbuilt in %.1f s%n", index, seconds);
            if (index.getSpeedup() < 1) {
                System.out.println("The exact search is faster: leave --index out");
            }
            JsonFile.write(
                    json,
                    Map.of(
                            "recall", index.getRecall(),
                            "share", index.getShare(),
                            "speedup", index.getSpeedup(),
                            "probes", index.getProbes(),
                            "seconds", seconds));
        } catch (MalformedModelException | IllegalArgumentException e) {
            throw new BadInputException(folder + ": " + e.getMessage(), e);
        }
        return 0;
    }
}
