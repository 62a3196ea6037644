"""What the project needs beside the package."""
