package io.djltp.training;

import ai.djl.Model;
import ai.djl.util.Preconditions;
import ai.djl.util.Utils;

import io.djltp.internal.files.SideFolder;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

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
     * @throws IllegalArgumentException if the name has folders in it
     * @throws IOException if it cannot be written
     */
    static void save(Model model, Path folder, String newName) throws IOException {
        String name = newName == null || newName.isEmpty() ? model.getName() : newName;
        Preconditions.checkArgument(
                name.equals(String.valueOf(Path.of(name).getFileName())),
                "The name of a model begins the name of its file, and \""
                        + name
                        + "\" leads to another folder: save it to that folder");
        Files.createDirectories(folder);
        try (SideFolder side = SideFolder.in(folder)) {
            Path last = null;
            if (model.getProperty("Epoch") == null) { // then DJL counts the files of the folder
                int epoch = Utils.getCurrentEpoch(folder, name);
                if (epoch >= 0) {
                    last = side.resolve(String.format(Locale.ROOT, "%s-%04d.params", name, epoch));
                    Files.createFile(last);
                }
            }
            model.save(side.getPath(), name);
            if (last != null) {
                Files.delete(last);
            }
            side.replace();
        } catch (IOException e) {
            throw SideFolder.explained(folder, e);
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
