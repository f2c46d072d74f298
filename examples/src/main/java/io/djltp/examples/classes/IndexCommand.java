package io.djltp.examples.classes;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.search.ClassIndex;

import picocli.CommandLine.Command;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;

/** Builds the index of a trained classifier's classes. */
@Command(
        name = "index",
        description =
                "Builds an index of the classes of a classifier of train --data, by which predict"
                        + " --index and serve --index find nearly all of the best classes sooner.",
        mixinStandardHelpOptions = true)
public final class IndexCommand extends RowsCommand {

    /** Creates the command; its options are set by the command line. */
    public IndexCommand() {}

    @Override
    Map<String, Object> run(ClassModel model, Path folder, ClassData data) throws IOException {
        long begin = System.nanoTime();
        ClassIndex index = model.buildIndex(data);
        double seconds = (System.nanoTime() - begin) / 1e9;
        index.save(folder.resolve(ClassModel.INDEX));
        System.out.printf(Locale.ROOT, "%s%nbuilt in %.1f s%n", index, seconds);
        if (index.getSpeedup() < 1) {
            System.out.println("The exact search is faster: leave --index out");
        }
        return Map.of(
                "recall", index.getRecall(),
                "share", index.getShare(),
                "speedup", index.getSpeedup(),
                "probes", index.getProbes(),
                "seconds", seconds);
    }
}
