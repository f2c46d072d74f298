import java.io.IOException;
import java.lang.classfile.Attribute;
import java.lang.classfile.Attributes;
import java.lang.classfile.ClassFile;
import java.lang.classfile.ClassModel;
import java.lang.classfile.ClassTransform;
import java.lang.classfile.FieldModel;
import java.lang.classfile.FieldTransform;
import java.lang.classfile.MethodModel;
import java.lang.classfile.MethodTransform;
import java.lang.classfile.attribute.InnerClassInfo;
import java.lang.classfile.attribute.InnerClassesAttribute;
import java.lang.classfile.constantpool.ClassEntry;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDateTime;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;

/**
 * Writes the public API of the compiled modules, with which japicmp compares the next builds: a jar of the public
 * and protected classes outside io.djltp.internal, and their supertypes, without code and private members. Needs
 * JDK 24 or newer:
 *
 * <pre>./mvnw -q -Pspark -Dmaven.test.skip package &amp;&amp; java .ci/FreezeApi.java 0.1.0</pre>
 */
class FreezeApi {
    private static final Map<String, String> MODULES =
            Map.of("tp-engine-bridge", "tp-engine-bridge", "tp-blocks", "tp-blocks", "tp-blocks/spark", "tp-spark");
    private static final Set<String> ATTRIBUTES =
            Set.of("Signature", "Exceptions", "ConstantValue", "InnerClasses", "PermittedSubclasses", "Record");
    private static final int REACHED = ClassFile.ACC_PUBLIC | ClassFile.ACC_PROTECTED;

    private final Map<String, ClassModel> classes = new TreeMap<>();
    private final SortedMap<String, ClassModel> frozen = new TreeMap<>();

    public static void main(String[] args) throws IOException {
        for (String module : MODULES.keySet()) {
            Path jar = Path.of(module, "src/api", MODULES.get(module) + "-" + args[0] + ".jar");
            new FreezeApi().freeze(Path.of(module, "target/classes"), jar);
            System.out.println(jar + ": " + Files.size(jar) + " bytes");
        }
    }

    private void freeze(Path folder, Path jar) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.filter(each -> each.toString().endsWith(".class")).toList()) {
                ClassModel model = ClassFile.of().parse(file);
                classes.put(model.thisClass().asInternalName(), model);
            }
        }
        classes.keySet().stream()
                .filter(name -> !name.startsWith("io/djltp/internal/") && isReached(name))
                .forEach(this::addWithSupertypes);
        Files.createDirectories(jar.getParent());
        try (ZipOutputStream zip = new ZipOutputStream(Files.newOutputStream(jar))) {
            zip.setLevel(9);
            for (String name : frozen.keySet()) {
                ZipEntry entry = new ZipEntry(name + ".class");
                entry.setTimeLocal(LocalDateTime.of(2026, 1, 1, 0, 0)); // the same bytes each time
                zip.putNextEntry(entry);
                zip.write(strip(frozen.get(name)));
            }
        }
    }

    /** Returns whether a class, and those around it, are public or protected. */
    private boolean isReached(String name) {
        ClassModel model = classes.get(name);
        List<InnerClassInfo> nested =
                model.findAttribute(Attributes.innerClasses()).map(InnerClassesAttribute::classes).orElse(List.of());
        for (InnerClassInfo each : nested) {
            if (each.innerClass().asInternalName().equals(name)) {
                return (each.flagsMask() & REACHED) != 0
                        && each.outerClass().map(ClassEntry::asInternalName).filter(this::isReached).isPresent();
            }
        }
        return (model.flags().flagsMask() & REACHED) != 0;
    }

    private void addWithSupertypes(String name) {
        ClassModel model = classes.get(name);
        if (model != null && frozen.put(name, model) == null) {
            Stream.concat(model.superclass().stream(), model.interfaces().stream())
                    .forEach(each -> addWithSupertypes(each.asInternalName()));
        }
    }

    private static byte[] strip(ClassModel model) {
        ClassTransform transform =
                ClassTransform.dropping(FreezeApi::isDropped)
                        .andThen(ClassTransform.transformingMethods(MethodTransform.dropping(FreezeApi::isDropped)))
                        .andThen(ClassTransform.transformingFields(FieldTransform.dropping(FreezeApi::isDropped)));
        return ClassFile.of(ClassFile.ConstantPoolSharingOption.NEW_POOL).transformClass(model, transform);
    }

    private static boolean isDropped(Object element) {
        return switch (element) {
            case MethodModel method -> !isMember(method.flags().flagsMask());
            case FieldModel field ->
                    !isMember(field.flags().flagsMask()) && !field.fieldName().equalsString("serialVersionUID");
            case Attribute<?> attribute -> !ATTRIBUTES.contains(attribute.attributeName().stringValue());
            default -> false;
        };
    }

    private static boolean isMember(int flags) {
        return (flags & REACHED) != 0 && (flags & ClassFile.ACC_SYNTHETIC) == 0;
    }
}
