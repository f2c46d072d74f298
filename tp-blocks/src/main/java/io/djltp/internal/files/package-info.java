/** Files that are replaced by whole ones, or not at all. */
@NullMarked
package io.djltp.internal.files;

import org.jspecify.annotations.NullMarked;
