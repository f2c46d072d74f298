package io.djltp.architecture;

import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.Field;
import java.lang.reflect.Member;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * What users can rely on, one line for each fact: which public types there are, what they are, and
 * their public and protected members, inherited ones among them, by their erased types. Packages
 * {@code io.djltp.internal} are not for users.
 */
final class PublicApi {

    private final SortedSet<String> facts = new TreeSet<>();

    private PublicApi() {}

    /**
     * Reads the facts of classes.
     *
     * @param classes the folder of class files
     * @return the facts
     * @throws IOException if the folder cannot be read
     */
    static SortedSet<String> of(Path classes) throws IOException {
        PublicApi api = new PublicApi();
        try (Stream<Path> files = Files.walk(classes)) {
            List<String> names =
                    files.map(file -> classes.relativize(file).toString())
                            .filter(
                                    name ->
                                            name.endsWith(".class")
                                                    && !name.endsWith("-info.class")
                                                    && !name.matches(".*djltp.internal.*"))
                            .map(
                                    name ->
                                            name.replaceAll("\\.class$", "")
                                                    .replaceAll("[/\\\\]", "."))
                            .toList();
            for (String name : names) {
                api.add(Class.forName(name, false, PublicApi.class.getClassLoader()));
            }
        } catch (ClassNotFoundException e) {
            throw new IOException(e);
        }
        return api.facts;
    }

    /**
     * Reads the facts of one type.
     *
     * @param type the type
     * @return its facts
     */
    static SortedSet<String> of(Class<?> type) {
        PublicApi api = new PublicApi();
        api.add(type);
        return api.facts;
    }

    private void add(Class<?> type) {
        if (!isVisible(type)) {
            return;
        }
        String name = type.getName();
        facts.add(name + (type.isInterface() ? " is an interface" : " is a class"));
        if (isOpen(type)) {
            facts.add(name + " can be extended");
        }
        Set<Class<?>> supertypes = new LinkedHashSet<>();
        addSupertypes(type, supertypes);
        for (Class<?> each : supertypes) {
            boolean own = each.getName().startsWith("io.djltp.");
            if (each != type && (!own || isVisible(each))) {
                facts.add(name + " is a " + each.getName());
            }
            if (own) {
                addMembers(type, each);
            }
        }
        for (Constructor<?> constructor : type.getDeclaredConstructors()) {
            addMember(type, constructor, "new(" + parameters(constructor) + ")");
        }
    }

    private void addMembers(Class<?> type, Class<?> owner) {
        for (Method method : owner.getDeclaredMethods()) {
            if (!method.isSynthetic()) {
                addMember(
                        type,
                        method,
                        method.getName()
                                + "("
                                + parameters(method)
                                + "): "
                                + method.getReturnType().getTypeName());
            }
        }
        for (Field field : owner.getDeclaredFields()) {
            if (!field.isSynthetic()) {
                addMember(type, field, field.getName() + ": " + field.getType().getTypeName());
            }
        }
    }

    private void addMember(Class<?> type, Member member, String text) {
        int modifiers = member.getModifiers();
        boolean reached = Modifier.isPublic(modifiers);
        if (!reached && !(Modifier.isProtected(modifiers) && isOpen(type))) {
            return;
        }
        String fact = type.getName() + (Modifier.isStatic(modifiers) ? " static " : " ") + text;
        if (facts.contains(fact) || facts.contains(fact + " for subclasses")) {
            return; // this is what a type closer to it has overridden
        }
        facts.add(fact + (reached ? "" : " for subclasses"));
        if (Modifier.isAbstract(modifiers) && (type.isInterface() || isOpen(type))) {
            facts.add(fact + " must be written");
        }
    }

    private static void addSupertypes(Class<?> type, Set<Class<?>> supertypes) {
        if (type != null && type != Object.class && supertypes.add(type)) {
            addSupertypes(type.getSuperclass(), supertypes);
            for (Class<?> each : type.getInterfaces()) {
                addSupertypes(each, supertypes);
            }
        }
    }

    private static boolean isVisible(Class<?> type) {
        int modifiers = type.getModifiers();
        if (!Modifier.isPublic(modifiers) && !Modifier.isProtected(modifiers)) {
            return false;
        }
        return !type.isAnonymousClass()
                && (type.getEnclosingClass() == null || isVisible(type.getEnclosingClass()));
    }

    /** Returns whether users can write subclasses. */
    private static boolean isOpen(Class<?> type) {
        return type.isInterface()
                || !Modifier.isFinal(type.getModifiers())
                        && Arrays.stream(type.getDeclaredConstructors())
                                .mapToInt(Constructor::getModifiers)
                                .anyMatch(
                                        each ->
                                                Modifier.isPublic(each)
                                                        || Modifier.isProtected(each));
    }

    private static String parameters(Executable member) {
        return Arrays.stream(member.getParameterTypes())
                .map(Class::getTypeName)
                .collect(Collectors.joining(", "));
    }
}
