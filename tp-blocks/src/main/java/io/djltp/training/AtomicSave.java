package io.djltp.training;

import ai.djl.Model;
import ai.djl.util.Utils;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Saves a model so that a file that was there before is replaced by a whole one, or not at all. */
final class AtomicSave {

    private AtomicSave() {}

    /** What saves a model. */
    @FunctionalInterface
    interface Saver {

        /**
         * Saves the model.
         *
         * @param folder the folder
         * @param name the name of the model, or {@code null}
         * @throws IOException if it cannot be written
         */
        void save(Path folder, String name) throws IOException;
    }

    /**
     * Saves a model beside the files that are there, and then takes their place.
     *
     * @param model the model
     * @param folder the folder
     * @param newName the name of the model, or {@code null} for its own
     * @throws IOException if it cannot be written
     */
    static void save(Model model, Path folder, String newName) throws IOException {
        String name = newName == null || newName.isEmpty() ? model.getName() : newName;
        Files.createDirectories(folder);
        Path side = Files.createTempDirectory(folder, ".saving-");
        Path last = null;
        try {
            if (model.getProperty("Epoch") == null) { // then DJL counts the files of the folder
                int epoch = Utils.getCurrentEpoch(folder, name);
                if (epoch >= 0) {
                    last = side.resolve(String.format(Locale.ROOT, "%s-%04d.params", name, epoch));
                    Files.createFile(last);
                }
            }
            model.save(side, name);
            if (last != null) {
                Files.delete(last);
            }
            for (Path file : list(side)) {
                Files.move(
                        file,
                        folder.resolve(file.getFileName()),
                        StandardCopyOption.ATOMIC_MOVE,
                        StandardCopyOption.REPLACE_EXISTING);
            }
        } finally {
            for (Path file : list(side)) {
                Files.delete(file);
            }
            Files.delete(side);
        }
    }

    private static List<Path> list(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.collect(Collectors.toList());
        }
    }

    /** Returns the model as listeners of a trainer get to see it: saved in another way. */
    static Model savedBy(Model model, Saver saver) {
        return (Model)
                Proxy.newProxyInstance(
                        Model.class.getClassLoader(),
                        new Class<?>[] {Model.class},
                        (proxy, method, args) -> {
                            if ("save".equals(method.getName()) && args.length == 2) {
                                saver.save((Path) args[0], (String) args[1]);
                                return null;
                            }
                            if ("equals".equals(method.getName())) {
                                return args[0] == proxy || model.equals(args[0]);
                            }
                            try {
                                return method.invoke(model, args);
                            } catch (InvocationTargetException e) {
                                throw e.getCause();
                            }
                        });
    }
}
