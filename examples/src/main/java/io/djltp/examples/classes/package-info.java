/** Contains what {@code tp} does with classifiers of a user's own data. */
@NullMarked
package io.djltp.examples.classes;

import org.jspecify.annotations.NullMarked;
