/** Files that are replaced by whole ones, or not at all. */
package io.djltp.internal.files;
